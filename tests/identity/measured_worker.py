"""A worker that runs an import and a full sync and prints its peak memory: ``measured_worker.py URL HOME``."""

from __future__ import annotations

import asyncio
import resource
import sys

from tenuto import Tenuto


async def main(url: str, home: str) -> None:
    async with Tenuto(url, home=home) as app, app.worker():
        for profile in ("Full Import", "Full Sync"):
            done = await app.wait(await app.extensions.identity.run("HR", profile), 900)
            print(profile, done.state, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
