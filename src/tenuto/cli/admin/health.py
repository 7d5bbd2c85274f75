"""``tenuto health``: report the health of the services on this machine from their health files.

This module is apart from `services.py` because a container runs this check every few seconds. The usual forms of the
command are handled here, without the command tree, the settings and the app, which take several times longer to load.
Other forms go through the tree and end in the same `report_health`. This module must not import click, rich or the app.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tenuto import paths
from tenuto.cli import exit_codes
from tenuto.cli.output import print_json, print_text
from tenuto.clock import SystemClock
from tenuto.errors import Invalid
from tenuto.model.work.worker_states import STALE_AFTER
from tenuto.presentation.state_symbols import state_label
from tenuto.presentation.text_formats import format_duration
from tenuto.service import health_file

_OPTIONS = {"--name": "name", "--home": "home", "--output": "output", "-o": "output"}


def run_without_command_tree(arguments: Sequence[str]) -> int | None:
    """Run the command and return its exit code, or None if the command tree must parse the arguments."""
    service: str | None = None
    options: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        option, equals, value = argument.partition("=")
        if argument in ("-q", "--quiet"):
            continue
        if option in _OPTIONS and (not equals or option.startswith("--")):
            options[_OPTIONS[option]] = value if equals else next(rest, "")
        elif service is None and argument in STALE_AFTER:
            service = argument
        else:
            return None
    if service is None or options.get("output", "json") not in ("json", "table"):
        return None
    if any(not value or value.startswith("-") for value in options.values()):
        return None
    try:
        home = paths.find_home(options.get("home"))
    except Invalid:
        return None
    as_json = options.get("output") == "json"
    return exit_codes.run_reporting_errors(
        lambda: report_health(home, service, options.get("name"), as_json=as_json), "tenuto health", as_json=as_json
    )


def report_health(home: Path, service: str, name: str | None, *, as_json: bool) -> int:
    """Print the health of the services of one kind and return the exit code."""
    now = SystemClock().now()
    found = health_file.read_health(home, service, now, name)
    if as_json:
        print_json(
            [
                {"name": each.name, "seen_at": each.written_at, "healthy": each.healthy, "has_ended": each.has_ended}
                for each in found
            ]
        )
    if not found:
        named = f" named {name}" if name else ""
        exit_codes.print_error(
            f"no {service}{named} runs on this machine: {home / 'run'} has no health file of it",
            f"start one; see tenuto {service} --help",
            code="health.service.not_found",
            as_json=as_json,
        )
        return exit_codes.FAILED
    if not as_json:
        for each in found:
            state = "alive" if each.healthy else "ended" if each.has_ended else "stale"
            age = each.written_at and f"last seen {format_duration(now - each.written_at)} ago"
            print_text(f"{state_label(state)}  {each.name}  {age or 'health file unreadable'}")
    failed = health_file.failed_processes(found)
    if failed:
        names = ", ".join(each.name for each in failed)
        has_ended = all(each.has_ended for each in failed)
        exit_codes.print_error(
            f"{service} {names} has ended without an orderly shutdown"
            + ("" if name else f", and no other {service} runs here")
            if has_ended
            else f"{service} {names} has not updated its health file in time",
            f"start it; see tenuto {service} --help"
            if has_ended
            else f"check its log and restart it; if it was removed, delete its file in {home / 'run'}",
            code="health.service.stale",
            as_json=as_json,
        )
    return exit_codes.FAILED if failed else exit_codes.OK
