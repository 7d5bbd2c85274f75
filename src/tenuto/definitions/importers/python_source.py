"""Static values in Python source: what an importer can know about a program without running it."""

from __future__ import annotations

import ast
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tenuto.errors import Invalid

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_MAX_SOURCE_CHARACTERS = 2_000_000
_MAX_NUMBER = 10**15
"""A larger product or sum, or a longer interval in seconds, is a mistake."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An expression whose value the source does not show."""

    text: str

    @property
    def last_name(self) -> str:
        """The last part of a dotted name."""
        return self.text.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Call:
    """A call, with the values of its arguments."""

    name: str
    """The dotted name of what is called."""
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    @property
    def last_name(self) -> str:
        return self.name.rpartition(".")[2]


class PythonSource:
    """A module, and the constants that it assigns."""

    def __init__(self, text: str, source: str) -> None:
        if len(text) > _MAX_SOURCE_CHARACTERS:
            raise Invalid(
                f"{source} has {len(text):,} characters; the maximum is {_MAX_SOURCE_CHARACTERS:,}",
                code="import.source.too_large",
                field="FILE",
                remedy="name the file that declares the schedules",
            )
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise Invalid(
                f"{source} is not Python source: {error}",
                code="import.source.invalid",
                field="FILE",
                remedy="name the Python file that declares the schedules",
            ) from error
        self._constants: dict[str, Any] = {}
        changed = _changed_names(self.tree)
        for node in self.tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=assigned) if name not in changed:
                    value = self.evaluate(assigned)
                    if not isinstance(value, Call | Reference):
                        self._constants[name] = value
                case _:
                    pass

    def nodes(self) -> Iterator[ast.AST]:
        """Yield all nodes in the order of the source."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.expr | ast.stmt)]
        yield from sorted(found, key=lambda node: (node.lineno, node.col_offset))

    def evaluate(self, node: ast.AST) -> Any:
        """Return the value of an expression; parts that are not static become `Reference` or `Call`."""
        try:
            return self._evaluate(node)
        except RecursionError:  # deeply nested, as in a sum of thousands of terms
            return Reference(source_text(node))

    def _evaluate(self, node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._constants.get(name, Reference(name))
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self.evaluate(item) for item in items]
            case ast.Set(elts=items) if all(isinstance(item, ast.Constant) for item in items):
                return {self.evaluate(item) for item in items}
            case ast.Dict():
                return self._dictionary(node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.evaluate(operand)
                return -value if isinstance(value, int | float) else Reference(source_text(node))
            case ast.BinOp(op=op) if type(op) in _OPERATORS:
                return self._combination(node)
            case ast.Call():
                return self._call(node)
            case _:
                return Reference(source_text(node))

    def _dictionary(self, node: ast.Dict) -> Any:
        keys = [self.evaluate(key) if key else None for key in node.keys]
        if not all(isinstance(key, str | int | float) for key in keys):
            return Reference(source_text(node))
        return dict(zip(keys, map(self.evaluate, node.values), strict=True))

    def _combination(self, node: ast.BinOp) -> Any:
        operands = self.evaluate(node.left), self.evaluate(node.right)
        try:
            if all(isinstance(operand, int | float) for operand in operands):
                result = _OPERATORS[type(node.op)](*operands)
                if abs(result) < _MAX_NUMBER:
                    return result
        except ArithmeticError:  # division by zero, or too large
            pass
        return Reference(source_text(node))

    def _call(self, node: ast.Call) -> Any:
        if any(isinstance(argument, ast.Starred) for argument in node.args) or any(
            option.arg is None for option in node.keywords
        ):
            return Reference(source_text(node))
        call = Call(
            source_text(node.func),
            tuple(self.evaluate(argument) for argument in node.args),
            {str(option.arg): self.evaluate(option.value) for option in node.keywords},
        )
        if call.name == "dict" and not call.arguments:
            return dict(call.options)
        if call.last_name == "timedelta" and is_static([*call.arguments, *call.options.values()]):
            try:
                return timedelta(*call.arguments, **call.options)
            except (TypeError, ValueError, OverflowError):
                return Reference(source_text(node))
        return call


def source_text(node: ast.AST) -> str:
    """Return the text of an expression."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return "…"


def _changed_names(tree: ast.Module) -> set[str]:
    """Return the names that are bound more than once, or whose value is changed in place."""
    bindings: Counter[str] = Counter()
    changed: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                bindings[name] += 1
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bindings[name] += 1
            case ast.alias(name=name, asname=other):
                bindings[other or name.partition(".")[0]] += 1
            case (
                ast.AugAssign(target=ast.Name(id=name))
                | ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del())
            ):
                changed.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
                changed.add(name)
            case _:
                pass
    return changed | {name for name, count in bindings.items() if count > 1}


def is_static(value: Any) -> bool:
    """Return whether a value, with all values in it, is known."""
    match value:
        case Reference() | Call():
            return False
        case list():
            return all(map(is_static, value))
        case dict():
            return all(map(is_static, value.values()))
        case _:
            return True


def is_json(value: Any) -> bool:
    """Return whether a value has the types of JSON only, with all values in it."""
    match value:
        case None | bool() | str() | int():
            return True
        case float():
            return math.isfinite(value)
        case list():
            return all(map(is_json, value))
        case dict():
            return all(isinstance(key, str) for key in value) and all(map(is_json, value.values()))
        case _:
            return False


def is_number(value: Any) -> bool:
    """Return whether a value is a number of seconds, minutes or other units that an interval can have."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER


def show_value(value: Any) -> str:
    """Return a value as its source has it."""
    match value:
        case Reference():
            return value.text
        case Call():
            return f"{value.name}(…)"
        case list():
            return f"[{', '.join(map(show_value, value))}]"
        case set():
            return f"{{{', '.join(sorted(map(repr, value)))}}}"
        case dict():
            return f"{{{', '.join(f'{key!r}: {show_value(item)}' for key, item in value.items())}}}"
        case _:
            return "..." if value is ... else repr(value)


def zone_name(value: Any) -> str | None:
    """Return the name of a time zone written as a text, ``ZoneInfo("…")``, ``pytz.timezone("…")`` or ``utc``."""
    match value:
        case str():
            return value
        case Call(arguments=(str(name), *_)) if value.last_name in ("ZoneInfo", "timezone", "gettz"):
            return name
        case Reference() if value.last_name.lower() == "utc":
            return "UTC"
        case _:
            return None


def format_seconds(seconds: float) -> str:
    """Return a duration as a definition file has it, in the largest unit that divides it."""
    if seconds <= 0 or seconds != int(seconds):
        return f"{seconds:g}s"
    size, unit = next(each for each in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")) if seconds % each[0] == 0)
    return f"{int(seconds) // size}{unit}"
