"""``tenuto health``: whether the services on this machine are well, by their files.

A container asks every few seconds. So the plain forms of the command are answered by `at_once`, without the tree of
commands, the settings or the app, whose loading would cost several times the answer. Whatever else was typed goes
through the tree as any command does, and ends in the same `report`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tenuto import paths
from tenuto.cli import exit_codes
from tenuto.cli.formatting import span
from tenuto.cli.output import glyph, show_json, show_text
from tenuto.clock import SystemClock
from tenuto.errors import Invalid
from tenuto.service import health_file

_OPTIONS = {"--name": "name", "--home": "home", "--output": "output", "-o": "output"}


def at_once(words: Sequence[str]) -> int | None:
    """The exit code; None if this is not a plain form of the command, for the tree of commands to judge."""
    service: str | None = None
    given: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if word in ("-q", "--quiet"):
            continue
        if option in _OPTIONS and (not equals or option.startswith("--")):
            given[_OPTIONS[option]] = value if equals else next(rest, "")
        elif service is None and word in health_file.STALE_AFTER:
            service = word
        else:
            return None
    if service is None or given.get("output", "json") not in ("json", "table"):
        return None
    if any(not value or value.startswith("-") for value in given.values()):
        return None
    try:
        home = paths.home(given.get("home"))
    except Invalid:
        return None
    as_json = given.get("output") == "json"
    return exit_codes.in_words(lambda: report(home, service, given.get("name"), as_json=as_json), "tenuto health")


def report(home: Path, service: str, name: str | None, *, as_json: bool) -> int:
    """Say how the services are; the exit code."""
    now = SystemClock().now()
    found = health_file.look(home, service, now, name)
    if as_json:
        show_json(found)
    if not found:
        called = f" named {name}" if name else ""
        exit_codes.complain(
            f"no {service}{called} runs here, by the files in {home / 'run'}", f"tenuto {service} --help"
        )
        return exit_codes.FAILED
    if not as_json:
        for one in found:
            word = "alive" if one.healthy else "stale"
            heard = f"heard of {span(now - one.seen_at)} ago" if one.seen_at else "its file cannot be read"
            show_text(f"{glyph(word)} {word}  {one.name}  {heard}")
    stale = [one.name for one in found if not one.healthy]
    if stale:
        exit_codes.complain(
            f"{service} {', '.join(stale)} has given no sign of life for too long",
            f"look at its log and restart it; if it is gone for good, remove its file in {home / 'run'}",
        )
    return exit_codes.FAILED if stale else exit_codes.OK
