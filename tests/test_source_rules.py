"""Rules of the source tree that are checked by reading files."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.source_trees import last_two_names, parse_module

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "tenuto"
MAX_PACKAGE_MODULES = 15
MAX_MODULE_LINES = 800
"""A longer module probably holds more than one concept."""

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
MODULES_THAT_READ_THE_TIME = {"clock.py", "ids.py"}
PACKAGES_WITH_SQL = {"store", "postgres"}
PRIVATE_DATABASES = {
    "tenuto_identity/connectors/csv_table.py": "a temporary SQLite file of one export",
    "tenuto_identity/connectors/sql/postgresql.py": "connected systems",
    "tenuto_identity/connectors/sql/sqlite.py": "connected systems",
    "tenuto_identity/connectors/sql/statements.py": "connected systems",
}
"""Modules with statements for another database than that of Tenuto."""
SLEEP_FUNCTIONS = {"asyncio.sleep", "time.sleep"}
TESTS_THAT_SLEEP = {
    "worker/test_limit_handoff.py": "waits to show that something does not happen",
    "postgres/test_embedded_server.py": "measures how long a server lingers",
    "web/browser/test_checks_execution.py": "samples the delay of changes on the screen",
}
"""Test modules that may sleep for a fixed time, with the reason; others use `tests.support.waiting`."""
SQL_STATEMENT = re.compile(r"\b(?:SELECT|UPDATE|DELETE\s+FROM|INSERT\s+INTO)\s")
MODULES_THAT_EXECUTE_DATA = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle"}
# In parts, so that this file does not contain the names.
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
    """Return the modules of Tenuto and of the extensions in this repository."""
    return sorted(SOURCE.rglob("*.py"))


def find_violations(search: Callable[[ast.Module], Iterator[tuple[int, str]]], *, except_in: set[str]) -> list[str]:
    """Return violations as `module:line: text`, except in these top-level modules and packages."""
    return [
        f"{module.relative_to(SOURCE)}:{line}: {text}"
        for module in modules()
        if module.relative_to(SOURCE).parts[1] not in except_in
        for line, text in search(parse_module(module))
    ]


def find_time_reads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = last_two_names(node)
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            name = next((f"time.{alias.name}" for alias in node.names if f"time.{alias.name}" in READS_THE_TIME), "")
        else:
            continue
        if name in READS_THE_TIME:
            yield node.lineno, name


def find_sql_strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            statement = SQL_STATEMENT.search(node.value)
            if statement:
                yield node.lineno, statement.group().strip()


def find_unsafe_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] in MODULES_THAT_EXECUTE_DATA)


def find_sleeps(tree: ast.Module) -> Iterator[int]:
    """Yield the lines where a test sleeps for a fixed time; inner functions, such as jobs, may sleep."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    left: list[ast.AST] = [function for function in functions if function.name.startswith("test_")]
    while left:
        for node in ast.iter_child_nodes(left.pop()):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    continue
                case ast.Call(func=ast.Attribute() as called, args=[ast.Constant(value=seconds)]) if (
                    seconds and last_two_names(called) in SLEEP_FUNCTIONS
                ):
                    yield node.lineno
            left.append(node)


def tracked_files() -> list[Path]:
    """Return the files that git tracks or would track; without git, all files outside hidden directories."""
    try:
        result = subprocess.run(
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
    paths = [ROOT / name for name in result.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def read_lock(name: str) -> dict[str, str]:
    """Return the versions of packages in a lock file."""
    text = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def package_names(requirements: list[object]) -> set[str]:
    names = (re.match(r"[A-Za-z0-9._-]+", entry) for entry in requirements if isinstance(entry, str))
    return {re.sub(r"[-_.]+", "-", name.group()).lower() for name in names if name}


def test_no_module_exceeds_the_maximum_length() -> None:
    lengths = {
        str(module.relative_to(SOURCE)): len(module.read_text(encoding="utf-8").splitlines()) for module in modules()
    }
    assert lengths, f"no modules in {SOURCE}"
    assert {name: length for name, length in lengths.items() if length > MAX_MODULE_LINES} == {}


def test_no_package_exceeds_the_maximum_number_of_modules() -> None:
    """`__init__` and `__main__` do not count. A larger package is divided by subject; see docs/architecture.md."""
    counts = Counter(str(module.parent.relative_to(SOURCE)) for module in modules() if not module.stem.startswith("__"))
    assert counts["tenuto/store/work"] > 5
    assert {package: count for package, count in counts.items() if count > MAX_PACKAGE_MODULES} == {}


def test_every_module_has_a_docstring() -> None:
    assert [
        str(module.relative_to(SOURCE)) for module in modules() if not ast.get_docstring(parse_module(module))
    ] == []


def test_only_the_clock_module_reads_the_time() -> None:
    assert find_violations(find_time_reads, except_in=MODULES_THAT_READ_THE_TIME) == []


def test_only_store_and_postgres_contain_sql() -> None:
    found = find_violations(find_sql_strings, except_in=PACKAGES_WITH_SQL)
    assert [each for each in found if each.partition(":")[0] not in PRIVATE_DATABASES] == []


def test_no_module_imports_a_format_that_executes_data() -> None:
    assert find_violations(find_unsafe_imports, except_in=set()) == []


def test_no_test_sleeps_for_a_fixed_time() -> None:
    tests = ROOT / "tests"
    found = {
        str(module.relative_to(tests)): lines
        for module in tests.rglob("test_*.py")
        if (lines := list(find_sleeps(ast.parse(module.read_text(encoding="utf-8")))))
    }
    assert {name: lines for name, lines in found.items() if name not in TESTS_THAT_SLEEP} == {}


def test_no_file_contains_a_package_registry_host() -> None:
    host = re.compile("|".join(REGISTRY_HOSTS).encode(), re.IGNORECASE)
    files = tracked_files()
    assert Path(__file__).resolve() in files
    assert [str(path.relative_to(ROOT)) for path in files if host.search(path.read_bytes())] == []


def test_lock_files_match_the_dependencies_of_the_project() -> None:
    """After a change of dependencies, run `scripts/lock`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"]
    runtime, build, dev = read_lock("runtime"), read_lock("build"), read_lock("dev")
    assert package_names(project["project"]["dependencies"]) <= runtime.keys()
    assert package_names(groups["build"]) <= build.keys()
    assert package_names(groups["dev"]) <= dev.keys()
    assert runtime.items() | build.items() <= dev.items()
    assert groups["build"] == project["build-system"]["requires"]
