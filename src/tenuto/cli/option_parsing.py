"""Parsing of option values, the filter options that all lists share, and the option names in errors."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from tenuto.errors import Invalid, UserError
from tenuto.model import validation
from tenuto.presentation.text_formats import safe_text

_MAX_TEXT_LENGTH = 16 * 1024 * 1024
_WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")
"""Long enough for every option; Python rejects texts of several thousand digits with another error."""


def option_conflict(first: str, second: str, remedy: str) -> Invalid:
    """Return the error for two options that exclude each other."""
    return Invalid(f"{first} and {second} cannot be combined", code="cli.option.conflict", field=first, remedy=remedy)


def missing_option(option: str, required: str, remedy: str) -> Invalid:
    """Return the error for an option that is given without another one."""
    return Invalid(f"{option} requires {required}", code="cli.option.requires_other", field=option, remedy=remedy)


def invalid_value(option: str, text: str, problem: str, *, code: str, remedy: str | None = None) -> Invalid:
    """Return the error for a value that an option does not accept."""
    return Invalid(f"{option} {text!r:.40} {problem}", code=code, field=option, remedy=remedy)


def confirm(action: str, field: str) -> bool:
    """Ask for confirmation of an action."""
    if not sys.stdin.isatty():
        problem = f"cannot ask for confirmation to {action}: stdin is not a terminal"
        raise Invalid(problem, code="cli.confirmation.unavailable", field=field, remedy="add --yes")
    return click.confirm(f"{action}?", err=True)


def require_wait(timeout: float | None, *, wait: bool) -> None:
    """Reject --timeout without --wait."""
    if timeout is not None and not wait:
        raise missing_option("--timeout", "--wait", "add --wait, or omit --timeout")


def parse_json_or_text(text: str, option: str) -> Any:
    """Parse the value of an argument: JSON, or else the text itself."""
    try:
        return validation.parse_strict_json(text)
    except validation.DuplicateKey as error:
        remedy = "give each key once"
        raise Invalid(f"{option}: {error}", code="cli.json.duplicate_key", field=option, remedy=remedy) from None
    except (ValueError, RecursionError):
        return text


def parse_whole_number(text: str, option: str, remedy: str) -> int:
    """Parse a whole number that is not negative."""
    if not _WHOLE_NUMBER.fullmatch(text):
        problem = f"is not a whole number{' of at most 18 digits' if len(text) > 18 else ''}"
        raise invalid_value(option, text, problem, code="cli.option.not_a_whole_number", remedy=remedy)
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


def read_text_option(value: str, option: str) -> str:
    """Return the value of an option, the content of the file after ``@``, or for ``-`` the content of stdin."""
    if value != "-" and not value.startswith("@"):
        return value
    try:
        with nullcontext(sys.stdin) if value == "-" else Path(value[1:]).open(encoding="utf-8") as file:
            text = file.read(_MAX_TEXT_LENGTH + 1)  # bounded: a device may be endless
    except (OSError, UnicodeDecodeError) as error:
        problem, remedy = f"cannot read {safe_text(value)} for {option}: {error}", "name a UTF-8 text file after the @"
        raise Invalid(problem, code="cli.file.not_readable", field=option, remedy=remedy) from error
    if len(text) > _MAX_TEXT_LENGTH:
        problem = f"the value of {option} is longer than {_MAX_TEXT_LENGTH:,} characters"
        raise Invalid(problem, code="cli.text.too_long", field=option, remedy="pass a reference instead")
    return text


def read_json_value(value: str, option: str) -> Any:
    """Return the JSON value of any type that is the value of an option; see `read_text_option`."""
    try:
        return validation.parse_strict_json(read_text_option(value, option))
    except (ValueError, RecursionError) as error:
        problem, remedy = f"the value of {option} is not JSON: {error}", f"write {option} '{{\"argument\": 1}}'"
        raise Invalid(problem, code="cli.json.invalid", field=option, remedy=remedy) from None


def read_json_option(value: str, option: str) -> dict[str, Any]:
    """Return the JSON object that is the value of an option; see `read_text_option`."""
    remedy = f"write {option} '{{\"argument\": 1}}'"
    found = read_json_value(value, option)
    if not isinstance(found, dict):
        problem = f"the value of {option} is not a JSON object"
        raise Invalid(problem, code="cli.json.not_an_object", field=option, remedy=remedy)
    return found
