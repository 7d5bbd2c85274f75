"""Static values in Python source: what an importer can know about a program without running it."""

from __future__ import annotations

import ast
import operator
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
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                value = self.evaluate(node.value)
                if not isinstance(value, Call | Reference):
                    self._constants[node.targets[0].id] = value

    def nodes(self) -> Iterator[ast.AST]:
        """Yield all nodes in the order of the source."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.expr | ast.stmt)]
        yield from sorted(found, key=lambda node: (node.lineno, node.col_offset))

    def evaluate(self, node: ast.AST) -> Any:
        """Return the value of an expression; parts that are not static become `Reference` or `Call`."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._constants.get(name, Reference(name))
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [self.evaluate(item) for item in items]
            case ast.Dict(keys=keys, values=values) if all(keys):
                return {self._key(key): self.evaluate(value) for key, value in zip(keys, values, strict=True) if key}
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.evaluate(operand)
                return -value if isinstance(value, int | float) else Reference(ast.unparse(node))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                operands = self.evaluate(left), self.evaluate(right)
                try:
                    if all(isinstance(operand, int | float) for operand in operands):
                        return _OPERATORS[type(op)](*operands)
                except ArithmeticError:  # division by zero, or too large
                    pass
                return Reference(ast.unparse(node))
            case ast.Call():
                return self._call(node)
            case _:
                return Reference(ast.unparse(node))

    def _key(self, node: ast.AST) -> Any:
        value = self.evaluate(node)
        return value if isinstance(value, str | int | float) else ast.unparse(node)

    def _call(self, node: ast.Call) -> Any:
        if any(isinstance(argument, ast.Starred) for argument in node.args) or any(
            option.arg is None for option in node.keywords
        ):
            return Reference(ast.unparse(node))
        call = Call(
            ast.unparse(node.func),
            tuple(self.evaluate(argument) for argument in node.args),
            {str(option.arg): self.evaluate(option.value) for option in node.keywords},
        )
        if call.name == "dict" and not call.arguments:
            return dict(call.options)
        if call.last_name == "timedelta" and is_static([*call.arguments, *call.options.values()]):
            try:
                return timedelta(*call.arguments, **call.options)
            except (TypeError, OverflowError):
                return Reference(ast.unparse(node))
        return call


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


def show_value(value: Any) -> str:
    """Return a value as its source has it."""
    match value:
        case Reference():
            return value.text
        case Call():
            return f"{value.name}(…)"
        case list():
            return f"[{', '.join(map(show_value, value))}]"
        case dict():
            return f"{{{', '.join(f'{key!r}: {show_value(item)}' for key, item in value.items())}}}"
        case _:
            return repr(value)


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
