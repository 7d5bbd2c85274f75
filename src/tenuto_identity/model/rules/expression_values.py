"""Values of expressions: kinds, variables, the clock of a rule, candidates of `unique`, and the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from itertools import chain
from typing import Any, Final
from zoneinfo import ZoneInfo

from tenuto.model.triggers.zones import start_of_day
from tenuto_identity.model.value_class import value_class

MAX_RESULT_BYTES: Final = 64 * 1024
UNIQUE_SUFFIXES: Final = 1000
"""How many numbered candidates `unique` offers after those that the expression names."""


class Kind(StrEnum):
    """Type of a value in an expression, as far as it is known before evaluation."""

    TEXT = "text"
    NUMBER = "number"
    BOOLEAN = "boolean"
    INSTANT = "date"
    BINARY = "binary value"
    LIST = "list"
    NONE = "none"
    ANY = "value"


class ExpressionFailed(Exception):
    """An expression could not be evaluated for these inputs. The old value of the attribute stays."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.expression = ""
        self.inputs: dict[str, Any] = {}

    def attach(self, expression: str, inputs: Mapping[str, Any]) -> None:
        """Add the expression and its inputs."""
        self.expression = expression
        self.inputs = dict(inputs)


class Variables(dict[str, Any]):
    """Variables of an expression, decoded on first use. A name without a value is None."""

    __slots__ = ("_load",)

    def __init__(self, load: Callable[[str], Any], known: Mapping[str, Any] | None = None) -> None:
        super().__init__(known or {})
        self._load = load

    def __missing__(self, name: str) -> Any:
        value = self[name] = self._load(name)
        return value


@value_class
class RuleClock:
    """The instant of evaluation and the zone of the rule."""

    now: datetime
    zone: str = "UTC"

    def today(self) -> date:
        """Return the date in the zone of the rule."""
        return self.now.astimezone(ZoneInfo(self.zone)).date()

    def midnight(self, day: date) -> datetime:
        """Return the instant at which a date begins in the zone of the rule."""
        return start_of_day(ZoneInfo(self.zone), day).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class ClockDate:
    """The result of ``today()``, moved by whole days: a comparison knows when it will change."""

    value: date
    offset_days: int = 0


@dataclass(frozen=True, slots=True)
class ClockInstant:
    """The result of ``now()``, moved by whole days."""

    value: datetime
    offset_days: int = 0


@dataclass(slots=True)
class EvaluationContext:
    """State of one evaluation: the clock, and when the result must be computed again."""

    clock: RuleClock
    reevaluate_at: datetime | None = None

    def note_change(self, instant: datetime) -> None:
        """Remember the earliest instant at which the result may change."""
        if instant > self.clock.now and (self.reevaluate_at is None or instant < self.reevaluate_at):
            self.reevaluate_at = instant

    def note_midnight(self) -> None:
        """The result depends on the clock in a way that cannot be computed: evaluate again at the next midnight."""
        self.note_change(self.clock.midnight(self.clock.today() + timedelta(days=1)))


@value_class
class UniqueBases:
    """Result of ``unique``: texts to try in order, then the first one with a number."""

    bases: tuple[str, ...]

    def candidates(self) -> list[str]:
        """Return all candidates in order."""
        return list(self.iterate())

    def iterate(self) -> Iterator[str]:
        """Yield the candidates in order, each once."""
        known: set[str] = set()
        for each in chain(self.bases, (f"{self.bases[0]}{number}" for number in range(2, UNIQUE_SUFFIXES + 2))):
            if each not in known:
                known.add(each)
                yield each


@value_class
class Evaluation:
    """Result of an expression."""

    value: Any
    """None: no value. A list for several values; `UniqueBases` for ``unique``."""
    reevaluate_at: datetime | None = None

    def as_list(self) -> list[Any]:
        """Return the values as a list; an empty list if there is none."""
        if self.value is None:
            return []
        return list(self.value) if isinstance(self.value, list) else [self.value]

    @property
    def is_true(self) -> bool:
        """Return whether a condition holds. Only the boolean true counts."""
        return self.value is True


def finish(context: EvaluationContext, result: Any) -> Evaluation:
    """Return the result of an expression in plain Python values."""
    if isinstance(result, list):
        items = [plain(context, item) for item in result]
        result = [item for item in items if item is not None]
        if sum(len(item) for item in result if isinstance(item, str)) > MAX_RESULT_BYTES:
            raise ExpressionFailed(f"the result has more than {MAX_RESULT_BYTES:,} characters")
        return Evaluation(result or None, context.reevaluate_at)
    result = plain(context, result)
    if isinstance(result, str):
        bounded(result)
    return Evaluation(result, context.reevaluate_at)


def plain(context: EvaluationContext, value: Any) -> Any:
    """Return a value without its link to the clock; the result is then evaluated again at midnight."""
    if isinstance(value, ClockDate | ClockInstant):
        context.note_midnight()
        return value.value
    return value


def bounded(text: str) -> str:
    """Return a text, or fail if it is too large."""
    if len(text) > MAX_RESULT_BYTES or (len(text) * 4 > MAX_RESULT_BYTES and len(text.encode()) > MAX_RESULT_BYTES):
        raise ExpressionFailed(f"a text has more than {MAX_RESULT_BYTES:,} bytes")
    return text
