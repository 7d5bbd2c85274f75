"""The pages for contributors agree with the code: layers, modules, functions, and places with `except Exception`."""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import grimp
import pytest

from tests.docs.pages import ROOT, blocks

SOURCE = ROOT / "src"
PACKAGE = SOURCE / "tenuto"
EXTENSIONS = ("tenuto_identity", "tenuto_notifications")
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PACKAGE_DETAILS = ROOT / "docs" / "contributing" / "packages.md"
MIN_PACKAGE_MODULES = 5
PRINTED_LINES, PRINTED_COLUMNS = 3 * 70, 105
"""What three printed pages hold."""
CONTRIBUTOR_PAGES = [
    ARCHITECTURE,
    ROOT / "docs" / "contributing" / "database.md",
    PACKAGE_DETAILS,
    ROOT / "docs" / "contributing" / "requirements.md",
    ROOT / "CONTRIBUTING.md",
]

MODULES_WITH_BROAD_EXCEPT = {
    "api/problems.py",
    "cli/attempt_printer.py",
    "cli/command_tree.py",
    "cli/inline_run.py",
    "diagnostics/doctor.py",
    "extension/registry.py",
    "extension/schemas.py",
    "jobs/app_import.py",
    "jobs/attempt_log.py",
    "jobs/child_entry_point.py",
    "jobs/outcomes.py",
    "jobs/output_capture.py",
    "jobs/redaction.py",
    "jobs/runner.py",
    "jobs/workflows/failures.py",
    "jobs/workflows/workflow_run.py",
    "postgres/write_coalescer.py",
    "service/polling_loop.py",
    "service/quarantine.py",
    "steps/built_in_kinds.py",
    "tracing.py",
    "worker/completer.py",
    "worker/executors/cluster.py",
    "worker/watchdog.py",
}
"""Modules that may catch `Exception`: one failure must not stop its neighbours, or user code may raise anything."""

_REASON = re.compile(r"# (?:noqa: \w+ — )?\w.{15,}")
_PATH = re.compile(r"`((?:[\w.]+/)*[\w*]+\.(?:py|sql)|(?:[\w]+/)+)`(?: \(((?:`\w+`(?:, )?)+)\))?")


def import_layers() -> list[set[str]]:
    """Return the layers that import-linter checks, top layer first, without the `__main__` module."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    return [layer for layer in map(split_layer, layers) if layer != {"__main__"}]


def split_layer(line: str) -> set[str]:
    return {name.strip("() ") for name in line.split("|")}


def broad_excepts() -> Iterator[tuple[str, str]]:
    """Yield module and source line of every `except Exception` in the package, also by the name of a tuple."""
    for module in sorted(PACKAGE.rglob("*.py")):
        text = module.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.ExceptHandler)
                and node.type
                and re.search(r"\b(Exception|_EXTENSION_ERRORS)\b", ast.unparse(node.type))
            ):
                yield module.relative_to(PACKAGE).as_posix(), text.splitlines()[node.lineno - 1]


def test_layer_list_on_architecture_page_equals_import_linter_layers() -> None:
    drawing = next(block.text for block in blocks(ARCHITECTURE) if block.text.startswith("cli "))
    drawn = [split_layer(re.split(r" {2,}", line)[0]) for line in drawing.splitlines()]
    assert drawn == import_layers()


def test_architecture_page_fits_on_three_printed_pages() -> None:
    lines = ARCHITECTURE.read_text(encoding="utf-8").splitlines()
    assert sum(max(1, len(textwrap.wrap(line, PRINTED_COLUMNS))) for line in lines) <= PRINTED_LINES


def test_small_packages_are_those_with_a_reason() -> None:
    """`__init__` and `__main__` do not count, and neither does a package that consists of subjects."""
    counts = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("[!_]*.py"))
    for extension in EXTENSIONS:
        counts += Counter(path.parent.relative_to(SOURCE).as_posix() for path in (SOURCE / extension).rglob("[!_]*.py"))
    table = PACKAGE_DETAILS.read_text(encoding="utf-8").partition("## Small packages")[2].partition("\n## ")[0]
    named = {
        name for line in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`([\w/]+)`", line)
    }
    assert named == {package for package, count in counts.items() if count < MIN_PACKAGE_MODULES}


def test_arrows_of_package_diagram_are_imports() -> None:
    graph = grimp.build_graph("tenuto", cache_dir=None)
    diagram = next(block.text for block in blocks(ARCHITECTURE) if block.text.startswith("flowchart"))
    labels = dict(re.findall(r'(\w+)\["?([\w, ]+)"?\]', diagram))
    arrows = [arrow for line in diagram.splitlines() for arrow in pairwise(line.split("-->"))]
    assert len(arrows) > 8
    for left, right in arrows:
        for source, target in product(re.findall(r"\b[A-Z]+\b", left), re.findall(r"\b[A-Z]+\b", right)):
            importers, imported = ({f"tenuto.{name}" for name in labels[node].split(", ")} for node in (source, target))
            assert any(
                graph.direct_import_exists(importer=importer, imported=each, as_packages=True)
                for importer, each in product(importers, imported)
            ), f"{labels[source]} does not import {labels[target]}"


def test_module_paths_of_data_paths_exist() -> None:
    chains = "\n".join(block.text for block in blocks(ARCHITECTURE) if "⇒" in block.text)
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    names = {name for name in re.findall(r"\b[a-z_]+(?:\.\w+)+", chains) if name.split(".")[0] in packages}
    assert len(names) > 15
    assert {name for name in names if not dotted_name_exists(name)} == set()


def dotted_name_exists(name: str) -> bool:
    """Whether a dotted name such as `worker.fetcher.Fetcher` is a module, or a class or function of a module."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = PACKAGE.joinpath(*parts[:length])
        module = path if path.is_dir() else path.with_suffix(".py")
        if module.exists():
            return not parts[length:] or (
                module.is_file() and all(part in defined_names(module) for part in parts[length:])
            )
    # A package may be named by one of its modules: `executors.native` for `worker/executors/native.py`.
    return any(PACKAGE.rglob("/".join(parts) + ".py"))


def defined_names(file: Path) -> set[str]:
    """Return the functions and classes of a module, or the statements of an SQL file."""
    text = file.read_text(encoding="utf-8")
    return set(re.findall(r"^ *(?:async def|def|class|-- name:) +(\w+)", text, re.MULTILINE))


@pytest.mark.parametrize("page", CONTRIBUTOR_PAGES, ids=lambda page: page.name)
def test_paths_and_functions_named_for_contributors_exist(page: Path) -> None:
    wrong = []
    for path, names in _PATH.findall(page.read_text(encoding="utf-8")):
        found = [file for folder in (PACKAGE, ROOT, ROOT / "tests") for file in folder.glob(path)]
        if not found:
            wrong.append(path)
        elif names:
            wrong += [f"{path}: {name}" for name in re.findall(r"\w+", names) if name not in defined_names(found[0])]
    assert wrong == []


def test_exception_is_caught_only_in_listed_modules_and_with_a_reason() -> None:
    found = list(broad_excepts())
    assert {module for module, _ in found} == MODULES_WITH_BROAD_EXCEPT
    assert [line for _, line in found if not _REASON.search(line)] == []
