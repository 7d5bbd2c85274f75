"""Parsing of option values, the filter options that all lists share, and the option names in errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any
from uuid import UUID

import typer

from tenuto.errors import Invalid, UserError
from tenuto.model import stored_values

_WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")
"""Long enough for every option; Python rejects texts of several thousand digits with another error."""


def option(metavar: str, help: str, *names: str, **settings: Any) -> Any:
    """Declare an option with a value; without names, its name is that of the parameter."""
    return typer.Option(*names, metavar=metavar, help=help, **settings)


def flag(help: str, *names: str) -> Any:
    """Declare an option without a value."""
    return typer.Option(*names, help=help)


def argument(metavar: str, help: str, **settings: Any) -> Any:
    """Declare a positional argument."""
    return typer.Argument(metavar=metavar, help=help, **settings)


def parse_json_or_text(text: str, option: str) -> Any:
    """Parse the value of an argument: JSON, or else the text itself."""
    try:
        return stored_values.parse_strict_json(text)
    except stored_values.DuplicateKey as error:
        raise Invalid(
            f"{option}: {error}", code="cli.json.duplicate_key", field=option, remedy="give each key once"
        ) from None
    except (ValueError, RecursionError):
        return text


def parse_whole_number(text: str, option: str, remedy: str) -> int:
    """Parse a whole number that is not negative."""
    if not _WHOLE_NUMBER.fullmatch(text):
        most = " of at most 18 digits" if len(text) > 18 else ""
        raise Invalid(
            f"{option} {text!r:.40} is not a whole number{most}",
            code="cli.option.not_a_whole_number",
            field=option,
            remedy=remedy,
        )
    return int(text)


@contextmanager
def translate_error_fields(options: Mapping[str, str], otherwise: str = "--{}") -> Iterator[None]:
    """Replace the field of an error by the option that sets it.

    ``options`` has the options whose names differ from their fields. A key ``field.`` is the pattern for parts of the
    field, with ``{}`` for the part.
    """
    try:
        yield
    except UserError as error:
        field = error.field or "--"
        # An option, or an argument such as NAME, is kept.
        is_option = field.startswith("--") or field.isupper()
        if not is_option and (isinstance(error, Invalid) or field in options):
            error.field = _option_name(field, options, otherwise)
        raise


def _option_name(field: str, options: Mapping[str, str], otherwise: str) -> str:
    if field in options:
        return options[field]
    whole, _, part = field.partition(".")
    if part and f"{whole}." in options:
        return options[f"{whole}."].replace("{}", part)
    if part and whole in options:
        return f"{options[whole]}, {part}"
    return otherwise.replace("{}", field.replace("_", "-") if otherwise == "--{}" else field)


JobFilter = Annotated[str | None, option("JOB", "Filter by job.")]
QueueFilter = Annotated[str | None, option("QUEUE", "Filter by queue.")]
TagFilter = Annotated[str | None, option("TAG", "Filter by tag.")]
LimitOption = Annotated[int, option("N", "Maximum number of rows.", min=1, max=500)]
BelowOption = Annotated[str | None, option("ID", "Pagination cursor: the id of the last row shown.")]


def build_filters(**options: Any) -> dict[str, Any]:
    """Return the given options as filter arguments of a list operation."""
    filters = {field: value for field, value in options.items() if value is not None}
    if "below" in filters:
        try:
            filters["below"] = UUID(filters["below"])
        except ValueError:
            raise Invalid(
                f"--below {filters['below']!r:.60} is not a complete id",
                code="cli.below.invalid",
                field="--below",
                remedy="copy the last id of the previous page",
            ) from None
    return filters
