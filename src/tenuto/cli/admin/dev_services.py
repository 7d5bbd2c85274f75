"""``tenuto dev``: run all services for a developer, and restart them when the code changes.

The command itself does not import the app: it runs `tenuto up --results` in a child process, so that a restart loads
everything again, and an app that cannot be imported only waits for the next change.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from tenuto.cli import exit_codes
from tenuto.cli.admin.services import WORKER_OPTIONS, Host, Port
from tenuto.cli.admin.source_watcher import SourceWatcher
from tenuto.cli.command import Session, command
from tenuto.cli.parameters import flag, option
from tenuto.clock import monotonic_seconds
from tenuto.errors import Invalid
from tenuto.presentation.text_formats import count_noun, safe_text

GRACE_SECONDS = 2.0
"""Default time for running tasks at a restart; those that take longer are handed back to the queue."""
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.3
_MAX_SCAN_SHARE = 0.1
"""Upper bound of the share of time spent on looking for changes."""
_SETTLE_SECONDS = 0.15
"""An editor or a version control system that writes several files is given time to finish."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OPTION_NAMES = {
    "lease_seconds": "--lease",
    "grace_seconds": "--grace",
    "executor_address": "--address",
    "executor_callback": "--callback",
}


@command(None, "dev", "--app tasks:app", "--app tasks:app --watch ../lib --queues default,mail", options=WORKER_OPTIONS)
def run_for_development(
    session: Session,
    host: Host = None,
    port: Port = None,
    no_web: Annotated[bool, flag("No web service.", "--no-web")] = False,
    watch: Annotated[
        list[str] | None, option("FOLDER", "Further folder to watch; can be repeated. The working folder is watched.")
    ] = None,
    reload: Annotated[bool, flag("Restart when a file changes. (default: yes)", "--reload/--no-reload")] = True,
    **options: Any,
) -> int:
    """Run all services, print results, and restart on changes.

    Like `tenuto up --results`, in a process that is restarted when a Python file, a definition file, an SQL script or a
    settings file changes. A running task has the grace time (default: 2 s) to end at a restart; then it goes back to
    the queue without a failed attempt. If the app cannot be imported, the error is shown until the next change.
    """
    if session.app_name is None:
        raise Invalid(
            "--app is required: it names the app to run",
            code="cli.app.missing",
            field="--app",
            remedy="add --app MODULE:OBJECT, such as --app tasks:app for `app = Tenuto()` in tasks.py",
        )
    given = {"host": host, "port": port, **options}
    given["grace_seconds"] = GRACE_SECONDS if given["grace_seconds"] is None else given["grace_seconds"]
    arguments = ["up", "--results", "--app", session.app_name, *_shared_arguments(session)]
    for name, value in given.items():
        if value is not None:
            arguments += [_OPTION_NAMES.get(name, f"--{name.replace('_', '-')}"), str(value)]
    if no_web:
        arguments.append("--no-web")
    folders = [Path.cwd(), *(Path(folder) for folder in watch or ())]
    for folder in folders:
        if not folder.is_dir():
            remedy = "give a folder with source files"
            raise Invalid(f"{folder} is not a folder", code="cli.dev.no_folder", field="--watch", remedy=remedy)
    return DevelopmentRunner(session, arguments, SourceWatcher(folders, [session.home]) if reload else None).run()


def _shared_arguments(session: Session) -> list[str]:
    found = []
    for name, value in (("--database", session.database), ("--home", session.home_folder)):
        if value is not None:
            found += [name, value]
    return found


def _stop_with_parent() -> None:
    """Have the kernel stop this process when its parent ends, even if that was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class DevelopmentRunner:
    """Runs the services in a child process, one after the other."""

    def __init__(self, session: Session, arguments: Sequence[str], watcher: SourceWatcher | None) -> None:
        self._session = session
        self._arguments = list(arguments)
        self._watcher = watcher
        self._child: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        self._looked_at = 0.0
        self._pause_seconds = _POLL_SECONDS

    def run(self) -> int:
        """Run until a signal; return the exit code."""
        handlers = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            if self._watcher is not None:
                self._session.print_message(f"watching {count_noun(self._watcher.file_count, 'file')} for changes")
            return self._run_until_stopped()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            if self._child is not None and self._child.poll() is None:
                self._child.kill()

    def _run_until_stopped(self) -> int:
        is_restart = False
        while True:
            code = self._run_child(quiet=is_restart or self._session.quiet)
            if code is not None and (self._is_stopped or self._watcher is None or code == exit_codes.OK):
                return code
            if code is not None:
                self._session.print_message("waiting for a change; stop with Ctrl-C")
                while not self._wait_for_change():
                    if self._is_stopped:
                        return code
            is_restart = True

    def _run_child(self, *, quiet: bool) -> int | None:
        """Run the services; return their exit code, or None if they were stopped because of a change."""
        arguments = [sys.executable, "-m", "tenuto", *self._arguments, *(["--quiet"] if quiet else [])]
        # Times in compiled files are whole seconds: a second change within one could be missed.
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        # In a separate process group, Ctrl-C reaches it through this process only, and therefore once.
        self._child = subprocess.Popen(arguments, env=environment, process_group=0, preexec_fn=_stop_with_parent)
        is_changed = False
        while (code := self._child.poll()) is None:
            if self._wait_for_change():
                # The second change during a slow shutdown hands running tasks back at once.
                self._child.send_signal(signal.SIGTERM)
                is_changed = True
        return None if is_changed and not self._is_stopped else code

    def _wait_for_change(self) -> bool:
        """Wait a moment; return whether files have changed since the previous call."""
        time.sleep(_POLL_SECONDS / 3)
        if self._watcher is None or monotonic_seconds() < self._looked_at + self._pause_seconds:
            return False
        started_at = monotonic_seconds()
        changes = self._watcher.find_changes()
        self._looked_at = monotonic_seconds()
        self._pause_seconds = max(_POLL_SECONDS, (self._looked_at - started_at) / _MAX_SCAN_SHARE)
        if not changes:
            return False
        while more := self._find_further_changes():
            changes += more
        names = list(dict.fromkeys(safe_text(os.path.relpath(path)) for path in changes))
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        self._session.print_message(f"{shown} changed; restarting")
        return True

    def _find_further_changes(self) -> list[Path]:
        assert self._watcher is not None
        time.sleep(_SETTLE_SECONDS)
        return self._watcher.find_changes()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._is_stopped = True
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)
