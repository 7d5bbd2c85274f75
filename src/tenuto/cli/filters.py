"""The options that narrow a list, the same for every list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tenuto.cli.frame import Session

Name = Annotated[str | None, typer.Option(metavar="JOB", help="Only those of this job.")]
Queue = Annotated[str | None, typer.Option(metavar="QUEUE", help="Only those of this queue.")]
Tag = Annotated[str | None, typer.Option(metavar="TAG", help="Only those with this tag.")]
Limit = Annotated[int, typer.Option(min=1, max=500, metavar="N", help="How many at most.")]
Below = Annotated[str | None, typer.Option(metavar="ID", help="Only those older than this one: the next page.")]


def where(**given: Any) -> dict[str, Any]:
    """What was asked for, as the app's lists take it."""
    from uuid import UUID

    from tenuto.errors import Invalid

    narrowed = {field: value for field, value in given.items() if value is not None}
    if "below" in narrowed:
        try:
            narrowed["below"] = UUID(narrowed["below"])
        except ValueError:
            raise Invalid("is not a whole id", field="--below", remedy="copy the last id of the page before") from None
    return narrowed


def say_if_more(session: Session, found: Sequence[dict[str, Any]], limit: int) -> None:
    """A full page may not be the last one."""
    if len(found) == limit:
        session.say(f"there may be more: add --below {found[-1]['id']}")
