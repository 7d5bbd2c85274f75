"""Exceptions that Tenuto raises on purpose.

    TenutoError
    ├── UserError              the caller can correct it; the text is safe to show to anyone
    │   ├── Invalid            a value is not acceptable
    │   ├── NotFound           the object does not exist
    │   ├── Conflict           the current state does not allow the operation
    │   └── Forbidden          the caller lacks permission
    ├── StoreError             the database
    │   ├── Unavailable        cannot be reached now; a retry may help
    │   ├── SchemaMismatch     the schema is older or newer than this program
    │   │   └── SchemaBehind   the schema is missing or older and must be migrated
    │   └── Unsupported        the server cannot be used (too old, read-only)
    ├── MissingExtra           optional packages are not installed
    └── EngineError            inside a running service
        ├── StaleLease         the worker no longer holds the task
        └── UnknownJob         no job of that name is registered in this process

Every error has a stable ``code`` such as ``schedule.trigger.never_fires``, which clients and tests match on. The
message says what is wrong, ``remedy`` says what to do about it; both may be reworded at any time.
"""

from __future__ import annotations


class TenutoError(Exception):
    """Base class of all errors that Tenuto raises on purpose."""

    def __init__(self, message: str, *, code: str, field: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        """Stable identifier of the error."""
        self.field = field
        """Name of the input field at fault, for programs; the message does not depend on it."""
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class UserError(TenutoError):
    """The caller can correct it."""


class Invalid(UserError):
    """A value is not acceptable."""

    item: int | None = None
    """In a batch: number of the input at fault, counted from 1. Later inputs may have been read already."""
    position: int | None = None
    """In a filter: number of the character at fault, counted from 0."""


class NotFound(UserError):
    """The object does not exist."""


class Conflict(UserError):
    """The current state does not allow the operation."""


class Forbidden(UserError):
    """The caller lacks permission."""


class StoreError(TenutoError):
    """The database reported or caused a problem."""


class Unavailable(StoreError):
    """The database cannot be reached now."""


class SchemaMismatch(StoreError):
    """The database schema does not fit this program."""


class SchemaBehind(SchemaMismatch):
    """The database schema is missing or older than this program and must be migrated."""


class Unsupported(StoreError):
    """The database server cannot be used by Tenuto."""


class MissingExtra(TenutoError):
    """A feature needs packages of an extra that is not installed."""


class EngineError(TenutoError):
    """An error inside a running service."""


class StaleLease(EngineError):
    """The worker no longer holds the task."""


class UnknownJob(EngineError):
    """No job of that name is registered in this process."""


def quoted(value: object, limit: int = 80) -> str:
    """Return the repr of a value for an error message, cut to ``limit`` characters.

    Python refuses to print integers of more than a few thousand digits; the message must not fail for them.
    """
    try:
        return f"{value!r:.{limit}}"
    except ValueError:
        return "a number with too many digits"
