"""Commands that pause, resume or cancel one object and print its new record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tenuto.app import Tenuto
from tenuto.cli.command import Session, command, login_name
from tenuto.cli.parameters import Declaration

_PARTICIPLES = {"pause": "paused", "resume": "resumed", "cancel": "cancelled"}
_HINTS = {"pause": "  resume with: tenuto {} resume {}", "resume": "  watch it with: tenuto {} watch {}", "cancel": ""}


def add_state_change(
    group: click.Group,
    name: str,
    help: str,
    id: Declaration,
    operations: Callable[[Tenuto], Any],
    summary: Callable[[Any], str] | None = None,
) -> None:
    """Add a command; its operation has the same name. ``summary`` describes the new record for people."""

    async def change(session: Session, **options: str) -> None:
        with session.as_user() as app:
            found = await operations(app).find(options["id"])
            await getattr(operations(app), name)(found)
        record = await operations(app).get(found)
        message = f"{group.name} {found} {_PARTICIPLES[name]} by {login_name()}"
        details = ["" if summary is None else f"  {summary(record)}", _HINTS[name].format(group.name, found)]
        session.report(record, message, *filter(None, details))

    change.__doc__ = help
    command(group, name, "019a8b3c-1d2e", "019a8b3c-1d2e -o json", options={"id": id})(change)
