"""A row of bulk work with the key it goes by, for whoever reads rows from outside: a file, the body of a request."""

from __future__ import annotations

from typing import Any

from tenuto.errors import Invalid


class Row(dict[str, Any]):
    """The fields of one row, and the key it goes by."""

    key: str = ""


def keyed(value: Any, field: str | None, *, drop: bool, remedy: str) -> Any:
    """The row with the key that stands in one of its fields, or as it is where no field is named.

    ``drop`` takes that field out of it, where the job has no such parameter.
    """
    if field is None:
        return value
    if not isinstance(value, dict) or value.get(field) is None:
        raise Invalid(f"has no {field!r:.80}", remedy=remedy)
    row = Row(value)
    row.key = str(row.pop(field) if drop else row[field])
    return row
