"""The rules of the house that can be read off the files themselves."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tenuto"
LONGEST_MODULE = 450

READS_THE_TIME = {
    "datetime.now",
    "datetime.today",
    "datetime.utcnow",
    "date.today",
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.perf_counter_ns",
}
MAY_READ_THE_TIME = {"clock.py", "ids.py"}
SLEEPS = {"asyncio.sleep", "time.sleep"}
MAY_SLEEP = {
    "worker/test_limit_handoff.py": "what must not happen any more is given the time to",
    "postgres/test_embedded_server.py": "how long a server lingers is a matter of time, and of nothing that could be waited for",
}
"""Tests that sleep for a time of their own choosing, and why; see `tests.support.waiting` for what the others do."""
SQL_STATEMENT = re.compile(r"\b(?:SELECT|UPDATE|DELETE\s+FROM|INSERT\s+INTO)\s")
RUNS_CODE_WHEN_READ = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle"}
# In pieces, so that this file does not name them either.
REGISTRY_HOSTS = [
    r"\.".join(parts)
    for parts in (
        ("py" + "pi", "org"),
        ("python" + "hosted", ""),
        ("registry", "npm" + "js"),
        ("registry", "yarn" + "pkg"),
        ("deb", "deb" + "ian"),
        ("(?:archive|security)", "(?:ubu" + "ntu|deb" + "ian)"),
    )
]


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def tree_of(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"), filename=str(module))


def places(found_in: Callable[[ast.Module], Iterator[tuple[int, str]]], *, outside: set[str]) -> list[str]:
    """Where a rule is broken, as `module:line: what`; `outside` names modules or folders of the package it spares."""
    return [
        f"{module.relative_to(PACKAGE)}:{line}: {what}"
        for module in modules()
        if module.relative_to(PACKAGE).parts[0] not in outside
        for line, what in found_in(tree_of(module))
    ]


def readings_of_the_time(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ".".join(ast.unparse(node).split(".")[-2:])
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            name = next((f"time.{alias.name}" for alias in node.names if f"time.{alias.name}" in READS_THE_TIME), "")
        else:
            continue
        if name in READS_THE_TIME:
            yield node.lineno, name


def sql_in_strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            statement = SQL_STATEMENT.search(node.value)
            if statement:
                yield node.lineno, statement.group().strip()


def imports_that_run_code_when_read(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] in RUNS_CODE_WHEN_READ)


def sleeps_of_tests(tree: ast.Module) -> Iterator[int]:
    """Where a test itself sleeps for a fixed time. Functions within it are the jobs it runs: they may."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    left: list[ast.AST] = [function for function in functions if function.name.startswith("test_")]
    while left:
        for node in ast.iter_child_nodes(left.pop()):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    continue
                case ast.Call(args=[ast.Constant(value=seconds)]) if seconds and ast.unparse(node.func) in SLEEPS:
                    yield node.lineno
            left.append(node)


def tracked_files() -> list[Path]:
    """The files git keeps or would keep; without git, or without a repository, everything that is not a tool's own."""
    try:
        answer = subprocess.run(
            ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return [
            path
            for path in ROOT.rglob("*")
            if path.is_file()
            and not any(
                part == "__pycache__" or (part.startswith(".") and part != ".ci")
                for part in path.relative_to(ROOT).parts[:-1]
            )
        ]
    paths = [ROOT / name for name in answer.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def locked(name: str) -> dict[str, str]:
    """Package to version, as one of the locks has them."""
    text = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def named_in(requirements: list[object]) -> set[str]:
    names = (re.match(r"[A-Za-z0-9._-]+", entry) for entry in requirements if isinstance(entry, str))
    return {re.sub(r"[-_.]+", "-", name.group()).lower() for name in names if name}


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    lengths = {
        str(module.relative_to(PACKAGE)): len(module.read_text(encoding="utf-8").splitlines()) for module in modules()
    }
    assert lengths, f"no modules in {PACKAGE}"
    assert {name: length for name, length in lengths.items() if length > LONGEST_MODULE} == {}


def test_every_module_says_what_it_is_for() -> None:
    assert [str(module.relative_to(PACKAGE)) for module in modules() if not ast.get_docstring(tree_of(module))] == []


def test_only_the_clock_reads_the_time() -> None:
    assert places(readings_of_the_time, outside=MAY_READ_THE_TIME) == []


def test_sql_stands_only_in_the_store() -> None:
    assert places(sql_in_strings, outside={"store"}) == []


def test_nothing_that_runs_code_when_it_is_read_is_imported() -> None:
    assert places(imports_that_run_code_when_read, outside=set()) == []


def test_no_test_sleeps_where_it_could_wait_for_something() -> None:
    tests = ROOT / "tests"
    found = {
        str(module.relative_to(tests)): lines
        for module in tests.rglob("test_*.py")
        if (lines := list(sleeps_of_tests(tree_of(module))))
    }
    assert {name: lines for name, lines in found.items() if name not in MAY_SLEEP} == {}


def test_no_file_names_a_package_registry() -> None:
    host = re.compile("|".join(REGISTRY_HOSTS).encode(), re.IGNORECASE)
    files = tracked_files()
    assert Path(__file__).resolve() in files
    assert [str(path.relative_to(ROOT)) for path in files if host.search(path.read_bytes())] == []


def test_the_locks_hold_what_the_project_asks_for_and_agree() -> None:
    """A change of dependencies is followed by `scripts/lock`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"]
    runtime, build, dev = locked("runtime"), locked("build"), locked("dev")
    assert named_in(project["project"]["dependencies"]) <= runtime.keys()
    assert named_in(groups["build"]) <= build.keys()
    assert named_in(groups["dev"]) <= dev.keys()
    assert runtime.items() | build.items() <= dev.items()
    assert groups["build"] == project["build-system"]["requires"]
