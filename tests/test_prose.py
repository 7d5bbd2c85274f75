"""Plain English: docstrings, comments, help texts, error texts, log events and documentation contain no banned words.

The list has the worst words of the style guide. Text that passes may still be unclear; the test is only a reminder.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

from tests.test_error_codes import error_classes

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
DEPLOYMENT = ROOT / "deploy"
MODULE_FOLDERS = ("src", "tests", "benchmarks", "examples")

BANNED = {
    "room": "module, or space",
    "house": "project",
    "door": "API, or entry point",
    "net": "sweep, or fallback",
    "seat": "limit slot",
    "heir": "successor",
    "storm": "chaos run",
    "bury": "dead-letter",
    "buried": "dead-lettered",
    "knock": "try to connect",
    "told": "reported, notified or asked",
    "tell": "report, notify or ask",
    "whoever": "name the actor",
    "somebody": "name the actor",
    "nobody": "name the actor",
    "anybody": "name the actor",
    "anew": "again",
    "beneath": "below",
    "at hand": "available",
    "in turn": "in order",
    "let go": "release or close",
    "put right": "repair",
    "of its own": "own, or separate",
    "stands so": "has this status",
    "letter": "dead letter, or character",
}
"""Banned word, and what to write instead. A plural or third person in -s is banned too."""

ALLOWED = (
    "dead letter",
    "dead-letter",
    "letters and digits",
    "letters, digits",
    "letter or digit",
    "lower-case letter",
    "capital letter",
    ".NET",
    "the user nobody",
    "users postgres, pgserver, nobody",
)
"""Phrases that contain a banned word in its ordinary meaning."""

_ALLOWED = re.compile("|".join(map(re.escape, ALLOWED)), re.IGNORECASE)
_BANNED = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, BANNED))})s?(?![\w-])", re.IGNORECASE)
_CODE = re.compile(r"``.*?``|`[^`\n]*`|https?://\S+", re.DOTALL)
_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1\s*$", re.DOTALL | re.MULTILINE)
_LINK_TARGET = re.compile(r"\]\([^)]*\)|<!--.*?-->", re.DOTALL)
_SCRIPT_COMMENT = re.compile(r"/\*.*?\*/|(?<![:\w'\"`])//[^\n]*", re.DOTALL)
_LOG_METHODS = {"debug", "info", "warning", "error", "critical", "exception"}
_HELP_KEYWORDS = {"help", "short_help", "epilog", "description", "summary", "remedy"}


def banned_words(text: str) -> list[str]:
    """Return the banned words of a text, without its code."""
    prose = _ALLOWED.sub(" ", re.sub(r"\s+", " ", _CODE.sub(" ", text)))
    return [match.group(1).lower() for match in _BANNED.finditer(prose)]


def texts_of_module(tree: ast.Module, errors: Set[str]) -> Iterator[tuple[int, str]]:
    """Yield line and text of all docstrings, help texts, error texts and log events of a module."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
            case ast.Call():
                for argument in _prose_arguments(node, errors):
                    yield argument.lineno, string_parts(argument)
            case _:
                continue


def comments_of(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield first line and text of the comments of a file; comments on consecutive lines are one text."""
    begin, end, parts = 0, 0, list[str]()
    for line, comment in _comment_lines(path, text):
        if parts and line != end + 1:
            yield begin, " ".join(parts)
            parts = []
        begin, end = (begin if parts else line), line
        parts.append(comment)
    if parts:
        yield begin, " ".join(parts)


def _comment_lines(path: Path, text: str) -> Iterator[tuple[int, str]]:
    match path.suffix:
        case ".py":
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                if token.type == tokenize.COMMENT:
                    yield token.start[0], token.string.lstrip("# ")
        case ".js":
            for match in _SCRIPT_COMMENT.finditer(text):
                first = text.count("\n", 0, match.start()) + 1
                for number, line in enumerate(match.group().splitlines()):
                    yield first + number, line.strip("/* ")
        case suffix:
            mark = "--" if suffix == ".sql" else "#"
            for number, line in enumerate(text.splitlines(), 1):
                if f" {mark}" in f" {line}":
                    yield number, line.partition(mark)[2].strip()


def _prose_arguments(call: ast.Call, errors: Set[str]) -> Iterator[ast.expr]:
    name = ast.unparse(call.func).rpartition(".")[2]
    if name in errors:
        yield from call.args
    elif name in _LOG_METHODS and isinstance(call.func, ast.Attribute):
        yield from call.args[:1]
    yield from (keyword.value for keyword in call.keywords if keyword.arg in _HELP_KEYWORDS)


def string_parts(node: ast.expr) -> str:
    """Return the literal text of an expression; placeholders of f-strings become an ellipsis."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(string_parts(value) if isinstance(value, ast.Constant) else "…" for value in values)
        case ast.BinOp(left=left, right=right):
            return string_parts(left) + string_parts(right)
        case ast.IfExp(body=body, orelse=orelse):
            return f"{string_parts(body)} {string_parts(orelse)}"
        case _:
            return ""


def markdown_prose(text: str) -> str:
    """Return a page without code blocks, link targets and comments; lines keep their numbers."""
    for pattern in (_FENCE, _LINK_TARGET):
        text = pattern.sub(lambda match: "\n" * match.group().count("\n"), text)
    return text


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def module_paths() -> list[Path]:
    """Return the modules of the source, the tests, the benchmarks and the examples."""
    found = [path for folder in MODULE_FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return sorted(path.relative_to(ROOT) for path in found if path != Path(__file__).resolve())


@pytest.mark.parametrize("package", sorted({"/".join(path.parts[:3]) for path in module_paths()}))
def test_texts_of_modules_contain_no_banned_words(package: str) -> None:
    errors = error_classes()
    top = ROOT / package
    faults = [
        f"{module.relative_to(ROOT)}:{line}: {', '.join(words)}"
        for module in (sorted(top.rglob("*.py")) if top.is_dir() else [top])
        for line, text in texts_of_module(ast.parse(module.read_text(encoding="utf-8")), errors)
        if (words := banned_words(text))
    ]
    assert faults == []


def commented_files() -> list[Path]:
    """Return the Python, SQL and JavaScript files of the source, all modules, and all files of the deployment."""
    source = [path for path in SOURCE.rglob("*") if path.suffix in (".sql", ".js")]
    deployment = [path for path in DEPLOYMENT.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return sorted([*source, *deployment, *(ROOT / path for path in module_paths())])


def test_comments_contain_no_banned_words() -> None:
    files = commented_files()
    assert {".py", ".sql", ".js", ".yaml", ".service"} <= {path.suffix for path in files}
    faults = [
        f"{path.relative_to(ROOT)}:{line}: {', '.join(words)}"
        for path in files
        for line, text in comments_of(path, path.read_text(encoding="utf-8"))
        if (words := banned_words(text))
    ]
    assert faults == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", 'url = "# told"  # one\n# two\n\n# three\n'),
        ("a.sql", "SELECT 1 -- one\n-- two\n\n    -- three\n"),
        ("a.js", 'const url = "https://told"; // one\n/** two */\n\n/* three */\n'),
        ("a.service", "Name=told # one\n# two\n\n# three\n"),
    ],
)
def test_comments_on_consecutive_lines_are_one_text(name: str, text: str) -> None:
    assert list(comments_of(Path(name), text)) == [(1, "one two"), (4, "three")]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_documentation_contains_no_banned_words(page: Path) -> None:
    paragraphs = markdown_prose(page.read_text(encoding="utf-8")).split("\n\n")
    faults = [f"{paragraph.strip()[:70]!r}: {words}" for paragraph in paragraphs if (words := banned_words(paragraph))]
    assert faults == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A worker is told to stop.", ["told"]),
        ("Whoever tells it, nobody\n hears.", ["whoever", "tell", "nobody"]),
        ("Nets and seats", ["net", "seat"]),
        ("networks, housekeeping, netting, indoor", []),
        ("the variable `told` and ``anew``", []),
        ("A dead letter is listed under dead-letters; a letter is not.", ["letter"]),
        ("letters and digits", []),
        ("what is at\nhand", ["at hand"]),
    ],
)
def test_banned_words_are_whole_words_outside_of_code(text: str, words: list[str]) -> None:
    assert banned_words(text) == words


def test_prose_of_a_module_includes_errors_logs_and_help_but_no_other_strings() -> None:
    source = '''
"""Module."""
NAME = "told"
"""Attribute."""
raise Invalid(f"{NAME} is bad", code="a.b", remedy="fix it")
log.info("task recovered", task_id=1)
Option("--told", help="Help text.")
'''
    texts = [text for _, text in texts_of_module(ast.parse(source), {"Invalid"})]
    assert sorted(texts) == ["Attribute.", "Help text.", "Module.", "fix it", "task recovered", "… is bad"]
