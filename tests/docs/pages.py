"""The pages of the documentation, and what stands in them: blocks, links, headings.

How a block is marked decides what becomes of it:

    ```python                       is run: see below
    <!-- not run: reason -->        on the line before: is only compiled
    ```console                      lines that begin with `$ tenuto …` must be commands the CLI knows

A Python block whose first line is `# name.py` is a file: it is kept for the later blocks of its page and run if it is a
program or a test; `# name.py, continued` adds to it. A block with `asyncio.run(` is a program. Every other block is a
fragment: the fragments of a page are run in order, in one namespace, with `await` allowed at the top, as in
`python -m asyncio`.

`print(…)  # words` says what is printed, and is held to it.
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
_PRINTS = re.compile(r"^\s*print\(.*\)\s+# (.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_IMAGE = re.compile(r"!\[[^\]]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_TYPED = re.compile(r"^\$ (.+)$", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`(tenuto [^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    reason: str | None
    """Why it is not run, if it is not."""

    @property
    def file(self) -> str | None:
        found = _FILE.match(self.text)
        return found[1] if found else None

    @property
    def continues(self) -> bool:
        """Whether it adds to a file that was begun further up."""
        found = _FILE.match(self.text)
        return found is not None and found[2] is not None

    @property
    def is_program(self) -> bool:
        return "asyncio.run(" in self.text or (self.file is not None and '__name__ == "__main__"' in self.text)

    @property
    def promised(self) -> list[str]:
        """What the block says it prints."""
        return _PRINTS.findall(self.text)

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """README, the other pages at the top, everything below docs and examples, and the benchmarks' own."""
    below = [page for folder in ("docs", "examples") for page in sorted((ROOT / folder).rglob("*.md"))]
    return [*sorted(ROOT.glob("*.md")), *below, ROOT / "benchmarks" / "README.md"]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def passages(page: Path) -> Iterator[str | Block]:
    """A page in order: the words before a block, the block, the words before the next, …"""
    text, said = page.read_text(encoding="utf-8"), 0
    for found in _BLOCK.finditer(text):
        yield text[said : found.start()]
        said = found.end()
        indent = len(found["indent"])
        lines = [line[indent:] for line in found["text"].splitlines(keepends=True)]
        line = text.count("\n", 0, found.start("text")) + 1
        yield Block(page, line, found["language"], "".join(lines), found["reason"])
    yield text[said:]


def blocks(page: Path) -> Iterator[Block]:
    return (passage for passage in passages(page) if isinstance(passage, Block))


def prose(page: Path) -> str:
    """The page without its blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    return _LINK.findall(prose(page))


def images(page: Path) -> list[str]:
    """The pictures of a page; each says in words what it shows."""
    return _IMAGE.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """What a link may name after the `#`, made as the usual renderers make it."""
    made: set[str] = set()
    for heading in _HEADING.findall(prose(page)):
        plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        number = sum(known == anchor or re.fullmatch(rf"{re.escape(anchor)}-\d+", known) is not None for known in made)
        made.add(anchor if not number else f"{anchor}-{number}")
    return made


def typed(page: Path) -> list[str]:
    """The command lines of a page, as they would be typed, in order."""
    return [line for block in blocks(page) for line in lines_typed(block)]


def lines_typed(block: Block) -> list[str]:
    return _TYPED.findall(block.text) if block.language == "console" else []


def mentioned(page: Path) -> list[str]:
    """The `tenuto …` commands in running text."""
    return _INLINE.findall(prose(page))
