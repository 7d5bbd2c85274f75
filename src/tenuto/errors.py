"""Every error Tenuto raises on purpose.

    TenutoError
    ├── UserError              something the caller can put right; safe to show to anyone
    │   ├── Invalid            a value is not acceptable; names the field
    │   ├── NotFound           no such thing
    │   ├── Conflict           the state of things does not allow it
    │   └── Forbidden          the caller may not
    ├── StoreError             the database
    │   ├── Unavailable        cannot be reached just now; trying again may help
    │   ├── SchemaMismatch     the database's schema is older or newer than this program
    │   │   └── SchemaBehind   it is missing or older: whoever migrates puts that right
    │   └── Unsupported        the server cannot carry Tenuto (too old, read-only)
    └── EngineError            inside a running service
        ├── StaleLease         the task is no longer held by this worker
        └── UnknownJob         no job of that name is registered in this process

A message says what happened, to which thing; ``remedy`` says what to do about it. This module imports nothing of
Tenuto's and holds no behaviour beyond the wording of an error.
"""

from __future__ import annotations


class TenutoError(Exception):
    """The root: catch this to catch everything Tenuto raises on purpose."""

    def __init__(self, message: str, *, field: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.field}: {self.message}" if self.field else self.message
        return f"{text} ({self.remedy})" if self.remedy else text


class UserError(TenutoError):
    """Something the caller can put right."""


class Invalid(UserError):
    """A value is not acceptable."""

    item: int | None = None
    """Of a batch: which of its inputs it was, counted from one. Others after it may have been read by then."""


class NotFound(UserError):
    """There is no such thing."""


class Conflict(UserError):
    """The state of things does not allow it."""


class Forbidden(UserError):
    """The caller may not do that."""


class StoreError(TenutoError):
    """Something about the database."""


class Unavailable(StoreError):
    """The database cannot be reached just now."""


class SchemaMismatch(StoreError):
    """The database's schema does not fit this program."""


class SchemaBehind(SchemaMismatch):
    """The database's schema is missing or older than this program: it has yet to be migrated."""


class Unsupported(StoreError):
    """The database server cannot carry Tenuto."""


class EngineError(TenutoError):
    """Something inside a running service."""


class StaleLease(EngineError):
    """The task is no longer held by this worker."""


class UnknownJob(EngineError):
    """No job of that name is registered in this process."""
