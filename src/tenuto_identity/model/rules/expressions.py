"""Expressions of sync rules: a whitelist of Python's expression syntax, checked and compiled once.

The text is parsed with the standard library's `ast`. Each allowed node is translated into a new tree that calls only
the operators and functions of this package; anything else is refused with its position. An expression can neither
reach objects of the interpreter nor loop. A missing input gives a missing result.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from tenuto.errors import Invalid
from tenuto_identity.model.rules import expression_functions as functions
from tenuto_identity.model.rules.expression_functions import (
    FUNCTIONS,
    Signature,
)
from tenuto_identity.model.rules.expression_values import (
    Evaluation,
    EvaluationContext,
    ExpressionFailed,
    Kind,
    RuleClock,
    Variables,
    finish,
)

__all__ = ["Evaluation", "Expression", "ExpressionFailed", "RuleClock", "Variables", "compile_expression"]

MAX_TEXT_BYTES: Final = 2048
MAX_DEPTH: Final = 30
MAX_LITERAL: Final = 2**63 - 1
_LITERALS: Final[Mapping[str, bool | None]] = {"none": None, "true": True, "false": False}
_SYNTAX_NAMES: Final = {
    ast.Attribute: "access to attributes (x.y)",
    ast.Subscript: "subscripts (x[0])",
    ast.Lambda: "lambda",
    ast.ListComp: "comprehensions",
    ast.SetComp: "comprehensions",
    ast.DictComp: "comprehensions",
    ast.GeneratorExp: "comprehensions",
    ast.JoinedStr: "f-strings",
    ast.NamedExpr: "assignments",
    ast.Starred: "unpacking",
    ast.Dict: "dictionaries",
    ast.Set: "sets",
    ast.Tuple: "tuples",
    ast.Await: "await",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.Slice: "slices",
}


@dataclass(frozen=True, eq=False)
class Expression:
    """A compiled expression. Two expressions with the same text are equal."""

    text: str
    names: frozenset[str]
    """Variables that it uses."""
    kind: Kind
    """Type of its result, as far as it is known."""
    is_unique: bool
    """The outermost call is ``unique``: the result is a list of candidates."""
    uses_clock: bool
    _function: Callable[[EvaluationContext, Variables], Any]
    _variables: Mapping[str, Kind]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def evaluate(self, variables: Variables, clock: RuleClock) -> Evaluation:
        """Return the result for these variables; raise `ExpressionFailed`."""
        context = EvaluationContext(clock)
        try:
            result = self._function(context, variables)
        except ExpressionFailed as error:
            error.attach(self.text, {name: variables[name] for name in sorted(self.names)})
            raise
        except (ValueError, ArithmeticError, TypeError, RecursionError) as problem:
            # Functions check their arguments; this is what they did not foresee, and it concerns one value only.
            failure = ExpressionFailed(f"{type(problem).__name__}: {problem}")
            failure.attach(self.text, {name: variables[name] for name in sorted(self.names)})
            raise failure from problem
        return finish(context, result)

    def terms(self) -> tuple[Expression, ...]:
        """Return the conditions that ``and``, ``or`` and ``not`` combine, for explanations; itself if it is one."""
        text = self.text.strip()
        segments = [ast.get_source_segment(text, node) for node in _leaves(ast.parse(text, mode="eval").body)]
        if len(segments) < 2:
            return (self,)
        return tuple(compile_expression(segment, self._variables) for segment in segments if segment)


def _leaves(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.BoolOp():
            return [leaf for value in node.values for leaf in _leaves(value)]
        case ast.UnaryOp(op=ast.Not()):
            return _leaves(node.operand)
        case _:
            return [node]


def compile_expression(text: str, variables: Mapping[str, Kind], *, field: str | None = None) -> Expression:
    """Check and compile an expression; raise `Invalid` that names the position.

    ``variables`` are the names that may be used, with their types.
    """
    tree = _parse(text, field)
    translator = _Translator(text, variables, field)
    body, kind = translator.translate(tree.body, 0, outermost=True)
    code = ast.Expression(
        ast.Lambda(
            args=ast.arguments(
                posonlyargs=[],
                args=[ast.arg(arg="_context"), ast.arg(arg="_variables")],
                kwonlyargs=[],
                kw_defaults=[],
                defaults=[],
            ),
            body=body,
        )
    )
    # The tree contains only nodes that `_Translator` created; the namespace has no builtins.
    namespace = {"__builtins__": {}, **functions.OPERATORS, **{f"_f_{name}": f.call for name, f in FUNCTIONS.items()}}
    function = eval(compile(ast.fix_missing_locations(code), "<expression>", "eval"), namespace)
    return Expression(
        text=text,
        names=frozenset(translator.names),
        kind=kind,
        is_unique=isinstance(tree.body, ast.Call) and _called_name(tree.body) == "unique",
        uses_clock=translator.uses_clock,
        _function=function,
        _variables=variables,
    )


def _parse(text: str, field: str | None) -> ast.Expression:
    if not text.strip():
        raise _refuse("is empty", text, 0, field)
    if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise _refuse(f"has more than {MAX_TEXT_BYTES} bytes", text[:60] + "…", 0, field)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise _refuse(f"is not valid: {error.msg}", text, max((error.offset or 1) - 1, 0), field) from None
    except (ValueError, MemoryError, RecursionError) as error:
        raise _refuse(f"is not valid: {str(error) or 'it is nested too deeply'}", text, 0, field) from None


def _refuse(problem: str, text: str, column: int, field: str | None, remedy: str | None = None) -> Invalid:
    where = f" (column {column + 1})" if column or remedy else ""
    return Invalid(
        f"the expression {text!r} {problem}{where}",
        code="identity.expression.invalid",
        field=field,
        remedy=remedy,
    )


def _called_name(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def suggest(name: str, known: Sequence[str]) -> str | None:
    """Return "did you mean …?" for a name that is close to a known one."""
    near = get_close_matches(name, known, 1) or get_close_matches(name.lower(), known, 1)
    return f"did you mean {near[0]}?" if near else None


class _Translator:
    """Translates the allowed nodes of one expression and infers their types."""

    def __init__(self, text: str, variables: Mapping[str, Kind], field: str | None) -> None:
        self._text = text
        self._offset = len(text) - len(text.lstrip())
        self._variables = variables
        self._field = field
        self._temporaries = 0
        self.names: set[str] = set()
        self.uses_clock = False

    def translate(self, node: ast.expr, depth: int, *, outermost: bool = False) -> tuple[ast.expr, Kind]:
        """Return the translated node and the type of its result."""
        if depth > MAX_DEPTH:
            raise self._error(f"is nested more than {MAX_DEPTH} levels deep", node)
        match node:
            case ast.Constant():
                return self._constant(node)
            case ast.Name():
                return self._name(node)
            case ast.List():
                items = [self.translate(item, depth + 1)[0] for item in node.elts]
                return _call("_list", ast.List(elts=items, ctx=ast.Load())), Kind.LIST
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                return self._arithmetic(node, depth)
            case ast.UnaryOp(op=ast.Not()):
                operand, _ = self.translate(node.operand, depth + 1)
                return _call("_not", operand), Kind.BOOLEAN
            case ast.UnaryOp(op=ast.USub()):
                operand, _ = self.translate(node.operand, depth + 1)
                return _call("_negate", operand), Kind.NUMBER
            case ast.BoolOp():
                return self._bool_op(node, depth)
            case ast.IfExp():
                return self._if_else(node, depth)
            case ast.Compare():
                return self._compare(node, depth)
            case ast.Call():
                return self._function_call(node, depth, outermost)
            case _:
                raise self._not_allowed(node)

    def _error(self, problem: str, node: ast.expr, remedy: str | None = None) -> Invalid:
        return _refuse(problem, self._text, node.col_offset + self._offset, self._field, remedy)

    def _not_allowed(self, node: ast.expr) -> Invalid:
        if isinstance(node, (ast.BinOp, ast.UnaryOp)):
            what = f"the operator {_operator_text(node.op)}"
        else:
            what = _SYNTAX_NAMES.get(type(node), type(node).__name__)
        return self._error(
            f"uses {what}, which is not allowed",
            node,
            "use names, literals, lists, + and -, comparisons, in, and, or, not, if-else and the listed functions",
        )

    def _constant(self, node: ast.Constant) -> tuple[ast.expr, Kind]:
        value = node.value
        if value is None or isinstance(value, bool):
            return ast.Constant(value), Kind.BOOLEAN if isinstance(value, bool) else Kind.NONE
        if isinstance(value, int):
            if value > MAX_LITERAL:
                raise self._error("contains a number that does not fit into 64 bits", node)
            return ast.Constant(value), Kind.NUMBER
        if isinstance(value, float):
            decimal = ast.get_source_segment(self._text.strip(), node) or repr(value)
            return _call("_decimal", ast.Constant(decimal)), Kind.NUMBER
        if isinstance(value, str):
            return ast.Constant(value), Kind.TEXT
        raise self._error(f"contains a literal of type {type(value).__name__}, which is not allowed", node)

    def _name(self, node: ast.Name) -> tuple[ast.expr, Kind]:
        name = node.id
        if name in _LITERALS:
            value = _LITERALS[name]
            return ast.Constant(value), Kind.NONE if value is None else Kind.BOOLEAN
        if name not in self._variables:
            if name in FUNCTIONS:
                raise self._error(f"uses the function {name} without calling it", node, f"write {name}(…)")
            known = sorted(self._variables)
            remedy = suggest(name, known) or f"the names are {', '.join(known[:20]) or 'none'}"
            raise self._error(f"uses the unknown name {name}", node, remedy)
        self.names.add(name)
        variable = ast.Subscript(ast.Name("_variables", ast.Load()), ast.Constant(name), ast.Load())
        return variable, self._variables[name]

    def _arithmetic(self, node: ast.BinOp, depth: int) -> tuple[ast.expr, Kind]:
        # Operands of the wrong type fail when a value is evaluated: an input may have any type by then.
        # A chain such as a + b + c + … nests to the left; only real nesting counts.
        operands: list[tuple[ast.operator, ast.expr]] = []
        current: ast.expr = node
        while isinstance(current, ast.BinOp) and isinstance(current.op, ast.Add | ast.Sub):
            operands.append((current.op, current.right))
            current = current.left
        if len(operands) > 200:
            raise self._error("has more than 200 operands", node)
        result, kind = self.translate(current, depth + 1)
        for op, operand in reversed(operands):
            right, right_kind = self.translate(operand, depth + 1)
            if isinstance(op, ast.Sub):
                result, kind = _call("_subtract", result, right), Kind.NUMBER
                continue
            known = {each for each in (kind, right_kind) if each not in (Kind.ANY, Kind.NONE)}
            result, kind = _call("_add", result, right), known.pop() if len(known) == 1 else Kind.ANY
        return result, kind

    def _temporary(self) -> str:
        self._temporaries += 1
        return f"_t{self._temporaries}"

    def _bool_op(self, node: ast.BoolOp, depth: int) -> tuple[ast.expr, Kind]:
        translated = [self.translate(value, depth + 1) for value in node.values]
        kinds = {kind for _, kind in translated} - {Kind.NONE}
        result, _ = translated[-1]
        for value, _ in reversed(translated[:-1]):
            name = self._temporary()
            test = _call("_has", ast.NamedExpr(ast.Name(name, ast.Store()), value))
            held = ast.Name(name, ast.Load())
            result = ast.IfExp(test, held, result) if isinstance(node.op, ast.Or) else ast.IfExp(test, result, held)
        return result, kinds.pop() if len(kinds) == 1 else Kind.ANY

    def _if_else(self, node: ast.IfExp, depth: int) -> tuple[ast.expr, Kind]:
        test, _ = self.translate(node.test, depth + 1)
        body, body_kind = self.translate(node.body, depth + 1)
        other, other_kind = self.translate(node.orelse, depth + 1)
        kinds = {body_kind, other_kind} - {Kind.NONE}
        return ast.IfExp(_call("_has", test), body, other), kinds.pop() if len(kinds) == 1 else Kind.ANY

    def _compare(self, node: ast.Compare, depth: int) -> tuple[ast.expr, Kind]:
        if len(node.ops) > 1:
            raise self._error("chains comparisons", node.comparators[1], "write them one by one: a <= b and b <= c")
        left, left_kind = self.translate(node.left, depth + 1)
        right, right_kind = self.translate(node.comparators[0], depth + 1)
        op = node.ops[0]
        name = _COMPARISONS.get(type(op))
        if name is None:
            raise self._error("uses 'is', which is not allowed", node, "write == none or != none")
        if Kind.NONE in (left_kind, right_kind) and isinstance(op, ast.Eq | ast.NotEq):
            operand = left if right_kind is Kind.NONE else right
            return _call("_is_missing" if isinstance(op, ast.Eq) else "_is_present", operand), Kind.BOOLEAN
        if not isinstance(op, ast.In | ast.NotIn):
            known = {left_kind, right_kind} - {Kind.ANY, Kind.NONE}
            if len(known) > 1:
                raise self._error(
                    f"compares a {left_kind.value} with a {right_kind.value}",
                    node.comparators[0],
                    "use in for lists" if Kind.LIST in known else None,
                )
        elif right_kind not in (Kind.LIST, Kind.TEXT, Kind.ANY):
            raise self._error(f"uses in with a {right_kind.value} instead of a list", node.comparators[0])
        return _call(name, ast.Name("_context", ast.Load()), left, right), Kind.BOOLEAN

    def _function_call(self, node: ast.Call, depth: int, outermost: bool) -> tuple[ast.expr, Kind]:
        if not isinstance(node.func, ast.Name):
            raise self._not_allowed(node.func)
        name = node.func.id
        signature = FUNCTIONS.get(name)
        if signature is None:
            raise self._error(
                f"calls the unknown function {name}",
                node,
                suggest(name, sorted(FUNCTIONS)) or f"the functions are {', '.join(sorted(FUNCTIONS))}",
            )
        if node.keywords:
            raise self._error("uses a keyword argument, which is not allowed", node, "give the arguments by position")
        if name == "unique" and not outermost:
            raise self._error("calls unique inside of another expression", node, "unique must be the outermost call")
        self._check_arguments(node, name, signature)
        arguments: list[ast.expr] = []
        for index, argument in enumerate(node.args):
            if isinstance(argument, ast.Starred):
                raise self._not_allowed(argument)
            translated, kind = self.translate(argument, depth + 1)
            expected = signature.kind_of(index)
            if expected is not Kind.ANY and kind not in (expected, Kind.ANY, Kind.NONE):
                raise self._error(
                    f"calls {name} with a {kind.value} instead of a {expected.value} as argument {index + 1}", argument
                )
            arguments.append(translated)
        self.uses_clock = self.uses_clock or name in ("now", "today")
        return _call(f"_f_{name}", ast.Name("_context", ast.Load()), *arguments), signature.result

    def _check_arguments(self, node: ast.Call, name: str, signature: Signature) -> None:
        count = len(node.args)
        if not signature.least <= count <= signature.most:
            raise self._error(
                f"calls {name} with {count} argument{'' if count == 1 else 's'}", node, f"write {signature.usage}"
            )
        if signature.pattern_argument is not None:
            pattern = node.args[signature.pattern_argument]
            if not isinstance(pattern, ast.Constant) or not isinstance(pattern.value, str):
                raise self._error(f"calls {name} with a pattern that is not a literal text", pattern)
            try:
                functions.compile_pattern(pattern.value)
            except ExpressionFailed as error:
                raise self._error(f"has an invalid pattern: {error}", pattern) from None


_COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "_equal",
    ast.NotEq: "_not_equal",
    ast.Lt: "_less",
    ast.LtE: "_less_or_equal",
    ast.Gt: "_greater",
    ast.GtE: "_greater_or_equal",
    ast.In: "_in",
    ast.NotIn: "_not_in",
}


def _operator_text(op: ast.AST) -> str:
    names = {
        ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.MatMult: "@",
        ast.LShift: "<<", ast.RShift: ">>", ast.BitOr: "|", ast.BitAnd: "&", ast.BitXor: "^", ast.Invert: "~",
        ast.UAdd: "+ (sign)",
    }  # fmt: skip
    return names.get(type(op), type(op).__name__)


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
