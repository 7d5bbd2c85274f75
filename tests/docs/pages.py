"""The pages of the documentation and their parts: code blocks, links, headings, commands.

The markup of a block decides how it is tested:

    ```python                       is run, see below
    <!-- not run: reason -->        on the line before a block: it is only compiled
    ```console                      lines that begin with `$ tenuto …` must be known commands

A Python block whose first line is `# name.py` is a file. Later blocks of the page can import it; it is run if it is a
program or a test. `# name.py, continued` appends to the file. A block with `asyncio.run(` is a program. All other
blocks are fragments: the fragments of a page run in order, in one namespace, with top-level `await`, as in
`python -m asyncio`.

A comment after `print(…)` is the expected output, and is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(
    r"^(?P<indent> *)(?:<!-- not run: (?P<reason>[^>]+?) -->\s*\n\s*)?"
    r"```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# (\w+\.py)(, continued)?\n")
_EXPECTED_OUTPUT = re.compile(r"^\s*print\(.*\)\s+# (.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_IMAGE = re.compile(r"!\[[^\]]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_CONSOLE_COMMAND = re.compile(r"^\$ (.+)$", re.MULTILINE)
_INLINE_COMMAND = re.compile(r"(?<!`)`(tenuto [^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced code block of a page."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None
    """Why the block is not run; None if it is run."""

    @property
    def file(self) -> str | None:
        """Name of the file that the block contains."""
        found = _FILE.match(self.text)
        return found[1] if found else None

    @property
    def continues_file(self) -> bool:
        found = _FILE.match(self.text)
        return found is not None and found[2] is not None

    @property
    def is_program(self) -> bool:
        return "asyncio.run(" in self.text or (self.file is not None and '__name__ == "__main__"' in self.text)

    @property
    def expected_lines(self) -> list[str]:
        """The lines that the block should print, according to its comments."""
        return _EXPECTED_OUTPUT.findall(self.text)

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return the pages in the root, in docs and in examples, and the README of the benchmarks."""
    nested = [page for folder in ("docs", "examples") for page in sorted((ROOT / folder).rglob("*.md"))]
    return [*sorted(ROOT.glob("*.md")), *nested, ROOT / "benchmarks" / "README.md"]


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def parts(page: Path) -> Iterator[str | Block]:
    """Yield the texts and blocks of a page in order; a text before each block, and one at the end."""
    text, end = page.read_text(encoding="utf-8"), 0
    for found in _BLOCK.finditer(text):
        yield text[end : found.start()]
        end = found.end()
        indent = len(found["indent"])
        lines = [line[indent:] for line in found["text"].splitlines(keepends=True)]
        line = text.count("\n", 0, found.start("text")) + 1
        yield Block(page, line, found["language"], "".join(lines), found["reason"])
    yield text[end:]


def blocks(page: Path) -> Iterator[Block]:
    return (part for part in parts(page) if isinstance(part, Block))


def python_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


def text_without_blocks(page: Path) -> str:
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    return _LINK.findall(text_without_blocks(page))


def images(page: Path) -> list[str]:
    """Return the images of a page that have an alternative text."""
    return _IMAGE.findall(text_without_blocks(page))


def anchors(page: Path) -> set[str]:
    """Return the anchors of all headings, made by the rules of GitHub."""
    found: set[str] = set()
    for heading in _HEADING.findall(text_without_blocks(page)):
        plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        count = sum(known == anchor or re.fullmatch(rf"{re.escape(anchor)}-\d+", known) is not None for known in found)
        found.add(anchor if not count else f"{anchor}-{count}")
    return found


def console_commands(page: Path) -> list[str]:
    """Return the command lines in the console blocks of a page, in order."""
    return [line for block in blocks(page) for line in commands_of_block(block)]


def commands_of_block(block: Block) -> list[str]:
    return _CONSOLE_COMMAND.findall(block.text) if block.language == "console" else []


def inline_commands(page: Path) -> list[str]:
    """Return the `tenuto …` commands in the running text of a page."""
    return _INLINE_COMMAND.findall(text_without_blocks(page))
