"""A worker that runs an import and a full sync and prints its peak memory: ``measured_worker.py URL HOME``."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from tenuto import Tenuto


def peak_kib() -> int:
    """Return the peak memory of this program in KiB.

    Not ``ru_maxrss``: that of a new process begins with the memory of its parent, here the test with its many rows.
    """
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


async def main(url: str, home: str) -> None:
    async with Tenuto(url, home=home) as app, app.worker():
        for profile in ("Full Import", "Full Sync"):
            done = await app.wait(await app.extensions.identity.run("HR", profile), 900)
            print(profile, done.state, peak_kib(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
