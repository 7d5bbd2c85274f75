"""What somebody typed, read: values, whole numbers, and a refusal brought back to the option it came from.

The options that narrow a list, the same for every list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from tenuto.cli.command import Session
from tenuto.errors import Invalid, UserError

_WHOLE = re.compile(r"[0-9]{1,18}")
"""No number anybody gives is longer, and Python reads none of more than some thousand digits."""


def value_of(text: str, option: str) -> Any:
    """The value of an argument: JSON or, if it is none, the text itself."""
    from tenuto.model import stored_values

    try:
        return stored_values.loads(text)
    except stored_values.NameTwice as error:
        raise Invalid(str(error), field=option, remedy="say it once") from None
    except (ValueError, RecursionError):
        return text


def whole_number(text: str, option: str, remedy: str) -> int:
    """A whole number that was typed as text; none is less than nothing."""
    if not _WHOLE.fullmatch(text):
        most = " of at most 18 digits" if len(text) > 18 else ""
        raise Invalid(f"{text!r:.40} is not a whole number{most}", field=option, remedy=remedy)
    return int(text)


@contextmanager
def by_option(options: Mapping[str, str], otherwise: str = "--{}") -> Iterator[None]:
    """A refusal of a field names the option it was typed into.

    ``options`` has those that are called otherwise than their fields; under ``field.`` stands how a part of the field
    is told, with ``{}`` for the part.
    """
    try:
        yield
    except UserError as error:
        field = error.field or "--"
        # What has been named by an option, or by a place on the line such as NAME, stays.
        named = field.startswith("--") or field.isupper()
        if not named and (isinstance(error, Invalid) or field in options):
            error.field = _option(field, options, otherwise)
        raise


def _option(field: str, options: Mapping[str, str], otherwise: str) -> str:
    if field in options:
        return options[field]
    whole, _, part = field.partition(".")
    if part and f"{whole}." in options:
        return options[f"{whole}."].replace("{}", part)
    if part and whole in options:
        return f"{options[whole]}, {part}"
    return otherwise.replace("{}", field.replace("_", "-") if otherwise == "--{}" else field)


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
