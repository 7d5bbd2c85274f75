"""Run a tour of Tenuto in about a minute. The exit code is 0 only if the ledger balances.

The tour works in a temporary directory and removes it, or in the directory given with ``--keep``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from examples.tour import processes
from examples.tour.jobs import app
from examples.tour.ledger import Ledger
from examples.tour.tour import Tour
from examples.tour.view import PlainPresenter, Presenter, SilentPresenter, TerminalPresenter
from rich.console import Console

from tenuto import logs
from tenuto.postgres import embedded_server

DASHBOARD_FOLDER = "dashboard"
"""Folder of the example data, in the directory of the tour."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--headless", action="store_true", help="print plain lines instead of live views")
    parser.add_argument("--json", action="store_true", help="print the ledger as JSON on stdout")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this directory and keep it")
    parser.add_argument("--stay", action="store_true", help="afterwards, run the dashboard with a week of example data")
    parser.add_argument("--port", type=int, default=8321, help="port of the dashboard; 0 chooses a free one")
    parser.add_argument("--no-browser", action="store_true", help="print the link of the dashboard, do not open it")
    parser.add_argument("--as-worker", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.as_worker:
        logs.configure("console", "warning")
        asyncio.run(processes.run_worker(options.as_worker))
        return 0
    home = (options.keep or Path(tempfile.mkdtemp(prefix="tenuto-demo-", dir="/tmp"))).absolute()
    home.mkdir(parents=True, exist_ok=True)
    if options.keep is None:
        home.chmod(0o755)  # as root, the server runs under another account, which needs access
    # SIGTERM must clean up like Ctrl-C.
    original = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = _run_tour(home, options)
        return stay(home, options.port, browser=not options.no_browser) or code if options.stay else code
    except KeyboardInterrupt:
        sys.stderr.write("\nThe tour was interrupted.\n")
        return 130
    finally:
        signal.signal(signal.SIGTERM, original)
        if options.keep is None:
            embedded_server.stop_server(home)
            embedded_server.stop_server(home / DASHBOARD_FOLDER)
            shutil.rmtree(home, ignore_errors=True)


def _run_tour(home: Path, options: argparse.Namespace) -> int:
    app.settings = app.settings.model_copy(update={"home": home, "database": None})
    presenter = _make_presenter(options)
    tour = Tour(home, presenter)
    try:
        with presenter:
            ledger = asyncio.run(_run_until_signal(tour))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except (TimeoutError, RuntimeError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    finally:
        tour.stop()
    presenter.ledger(ledger)
    if not (options.json or options.stay):
        kept = f"tenuto activity list --home {options.keep}" if options.keep else "scripts/demo --keep DIR"
        sys.stdout.write(f"{'Look around with' if options.keep else 'To look around afterwards, run'}: {kept}\n")
    if options.json:
        sys.stdout.write(json.dumps(ledger.as_document()) + "\n")
    return 0 if ledger.balances else 1


def stay(home: Path, port: int, *, browser: bool) -> int:
    """Run the services with a week of example history until Ctrl-C; return the exit code."""
    sys.stderr.write("\nThe dashboard, with example data:\n")
    arguments = ["up", "--demo", "--home", str(home / DASHBOARD_FOLDER), "--port", str(port)]
    process = subprocess.Popen([sys.executable, "-m", "tenuto", *arguments, *([] if browser else ["--no-browser"])])
    signal.signal(signal.SIGTERM, lambda _signal, _frame: process.terminate())
    interrupted = False
    while True:
        try:
            return 0 if process.wait() == 0 or interrupted else 1
        except KeyboardInterrupt:  # the services get the Ctrl-C too
            if interrupted:
                process.terminate()
            interrupted = True


async def _run_until_signal(tour: Tour) -> Ledger:
    """Run the tour as a task that SIGTERM cancels, because an exception of a signal handler could go anywhere."""
    task = asyncio.ensure_future(tour.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _make_presenter(options: argparse.Namespace) -> Presenter:
    if options.json:
        return PlainPresenter(_replace_unencodable(sys.stderr)) if sys.stderr.isatty() else SilentPresenter()
    console = Console()
    if options.headless or not console.is_terminal or console.is_dumb_terminal or not _can_draw():
        return PlainPresenter(_replace_unencodable(sys.stdout))
    return TerminalPresenter(console)


def _can_draw() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()


def _replace_unencodable(out: Any) -> Any:
    """Make a stream write a question mark for characters that it cannot encode."""
    if hasattr(out, "reconfigure"):
        out.reconfigure(errors="replace")
    return out


if __name__ == "__main__":
    sys.exit(main())
