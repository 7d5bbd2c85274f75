"""Evaluation of filters on the fields of an event. `tenuto.store.filter_sql` translates the same clauses to SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tenuto.model.filters import Clause, Filter, IdRange, KeyType, Match, Range, Value


def matches(filter: Filter, title: str, fields: Mapping[str, Any]) -> bool:
    """Return whether an event meets all clauses of a filter."""
    return all(_meets(clause, title, fields) is not clause.is_negated for clause in filter.clauses)


def _meets(clause: Clause, title: str, fields: Mapping[str, Any]) -> bool:
    if clause.key is None:
        texts = [title, *(str(value) for value in fields.values())]
        return any(_contains(text, str(clause.values[0])) for text in texts)
    value = fields.get(clause.key.name)
    if value is None:
        return clause.key.type is KeyType.FLAG and False in clause.values
    return any(_equals(value, wanted, clause.match) for wanted in clause.values)


def _equals(value: Any, wanted: Value, match: Match) -> bool:
    if isinstance(value, list | tuple):
        return any(_equals(each, wanted, match) for each in value)
    if match is Match.CONTAINS:
        return _contains(str(value), str(wanted))
    if isinstance(wanted, Range):
        return (wanted.low is None or value >= wanted.low) and (wanted.high is None or value < wanted.high)
    if isinstance(wanted, IdRange):
        id = value if isinstance(value, UUID) else UUID(str(value))
        return wanted.low <= id <= wanted.high
    return value is wanted if isinstance(wanted, bool) else str(value) == wanted


def _contains(text: str, part: str) -> bool:
    return part.lower() in text.lower()
