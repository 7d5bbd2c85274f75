"""`scripts/demo`: the tour, from its arguments to its exit code, which is 0 only if the ledger balances.

It ends by itself, in about a minute. Everything happens in a temporary folder, of which nothing is left, or in the one
given with ``--keep``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from examples.tour import crew
from examples.tour.jobs import app
from examples.tour.ledger import Ledger
from examples.tour.tour import Tour
from examples.tour.view import Plain, Silent, Story, Terminal
from rich.console import Console

from tenuto import logs
from tenuto.postgres import embedded_server


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--headless", action="store_true", help="plain lines instead of pictures drawn in place")
    parser.add_argument("--json", action="store_true", help="print the ledger as JSON on stdout")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this folder and keep it")
    parser.add_argument("--as-worker", metavar="NAME", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.as_worker:
        logs.configure("console", "warning")
        asyncio.run(crew.be_a_worker(given.as_worker))
        return 0
    home = (given.keep or Path(tempfile.mkdtemp(prefix="tenuto-demo-", dir="/tmp"))).absolute()
    home.mkdir(parents=True, exist_ok=True)
    if given.keep is None:
        home.chmod(0o755)  # as root the server runs under another account, which must be able to pass
    # The database is stopped on purpose: what the driver says to that is not for the audience.
    logging.getLogger("asyncpg").setLevel(logging.CRITICAL)
    # Whoever ends it wants nothing left behind: the same way out as for Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _take(home, given)
    except KeyboardInterrupt:
        sys.stderr.write("\nThe tour was broken off.\n")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _take(home: Path, given: argparse.Namespace) -> int:
    app.settings = app.settings.model_copy(update={"home": home, "database": None})
    story = _story(given)
    tour = Tour(home, story)
    try:
        with story:
            ledger = asyncio.run(_until_told(tour))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except (TimeoutError, RuntimeError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    finally:
        tour.stop()
        if given.keep is None:
            embedded_server.stop_server(home)
            shutil.rmtree(home, ignore_errors=True)
    story.ledger(ledger)
    if given.json:
        sys.stdout.write(json.dumps(ledger.as_document()) + "\n")
    return 0 if ledger.balances else 1


async def _until_told(tour: Tour) -> Ledger:
    """The tour as a task that SIGTERM cancels: raised in the middle of a loop, an exception might go anywhere."""
    task = asyncio.ensure_future(tour.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _story(given: argparse.Namespace) -> Story:
    if given.json:
        return Plain(_forgiving(sys.stderr)) if sys.stderr.isatty() else Silent()
    console = Console()
    if given.headless or not console.is_terminal or console.is_dumb_terminal or not _can_draw():
        return Plain(_forgiving(sys.stdout))
    return Terminal(console)


def _can_draw() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()


def _forgiving(out: Any) -> Any:
    """A stream that writes a question mark for a sign it does not have."""
    if hasattr(out, "reconfigure"):
        out.reconfigure(errors="replace")
    return out


if __name__ == "__main__":
    sys.exit(main())
