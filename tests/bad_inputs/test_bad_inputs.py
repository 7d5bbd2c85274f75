"""The 98 bad inputs over HTTP and on the command line: each is refused with code and remedy, or stored unchanged.

A refused input stores nothing, and every bad input is covered by a test."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest

from tenuto.cli import exit_codes
from tenuto.cli.command_tree import run
from tests.api.conftest import ApiClient, assert_problem
from tests.api.test_bad_inputs import REQUESTS
from tests.bad_inputs import cli_cases, http_cases
from tests.bad_inputs.bad_input_list import COVERED_BY_TESTS, MENTIONED_IN_TESTS, TITLES, find_missing
from tests.bad_inputs.cli_cases import CliCase
from tests.cli.conftest import TASKS, CommandResult, clean_environment

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
COUNTED_TABLES = ("schedules", "tasks", "executions", "manifests", "batches", "activities", "dead_letters", "secrets",
           "api_keys", "log_entries", "queues", "schedule_versions")  # fmt: skip
MAX_SECONDS = 20.0
CODES_WITHOUT_REMEDY = ("job.input.invalid", "step.sql.script.empty")
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal acts upon."""


# --- coverage ---------------------------------------------------------------------------------------------


def test_every_bad_input_is_covered() -> None:
    assert list(TITLES) == [f"B{number}" for number in range(1, 99)]
    places: dict[str, set[str]] = defaultdict(set)
    for bad in REQUESTS:
        places[bad.number].add("api: tests/api/test_bad_inputs.py (table)")
    for http_case in http_cases.REFUSED:
        places[http_case.number].add("api: tests/bad_inputs/http_cases.py")
    for cli_case in cli_cases.REFUSED:
        places[cli_case.number].add("cli: tests/bad_inputs/cli_cases.py")
    for number in cli_cases.KEPT_NUMBERS:
        places[number].add("cli: tests/bad_inputs/cli_cases.py (stored)")
    for number, tests in COVERED_BY_TESTS.items():
        for test in tests:
            assert _exists(test), f"{number}: there is no {test}"
            places[number].add(f"python: {test}")
    for number in MENTIONED_IN_TESTS:
        places[number] |= {f"api: {test}" for test in _tests_mentioning(number)}
    for number, title in TITLES.items():
        print(f"{number:4} {title}: " + "; ".join(sorted(places[number]) or ["not covered"]))
    assert set(places) <= set(TITLES)
    assert find_missing(number for number, found in places.items() if found) == []


def _exists(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and (not name or name in _test_sources(ROOT / file))


def _test_sources(file: Path) -> dict[str, str]:
    """Return the source of each function of a file."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    source = file.read_text(encoding="utf-8")
    nodes = [node for node in ast.parse(source).body if isinstance(node, functions)]
    return {node.name: ast.get_source_segment(source, node) or "" for node in nodes}


def _tests_mentioning(number: str) -> list[str]:
    found = []
    for file in sorted((ROOT / "tests" / "api").glob("test_*.py")):
        for name, source in _test_sources(file).items():
            if name.startswith("test_") and re.search(rf"\b{number}\b", source):
                found.append(f"tests/api/{file.name}::{name}")
    return found


# --- HTTP --------------------------------------------------------------------------------------------------------


async def test_api_refuses_bad_inputs_with_code_and_field_and_stores_nothing(
    service: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.api.state.rate_limiter, "count_failure", lambda _address: None)
    database = await service.app.open()
    wrong: list[str] = []
    before = await database.fetch_one(_count_query())
    for case in http_cases.REFUSED:
        started_at = time.monotonic()
        response = await service.send(case.method, case.path, case.role, **case.options)
        name = f"{case.number} {case.method} {case.path} {str(case.options)[:120]}"
        if response.status_code != case.status or time.monotonic() - started_at > MAX_SECONDS:
            wrong.append(f"{name}: {response.status_code} {response.text[:300]}")
            continue
        problem = assert_problem(response, case.status)
        fields = [each["field"] for each in problem.get("errors", [])]
        if not _matches(problem["code"], case.code) or not any(
            field.startswith(case.field) for field in fields or [""]
        ):
            wrong.append(f"{name}: expected {case.code} {case.field}: {response.text[:300]}")
        if "remedy" not in problem and problem["code"] not in CODES_WITHOUT_REMEDY:
            wrong.append(f"{name}: no remedy: {response.text[:300]}")
        after = await database.fetch_one(_count_query())
        if after != before:
            wrong.append(f"{name}: changed {before} to {after}")
            before = after
    assert wrong == []


def _matches(code: str, expected: str) -> bool:
    return code == expected or code.startswith(f"{expected}.")


async def test_api_responses_cannot_be_framed_sniffed_or_rendered_as_pages(service: ApiClient) -> None:
    """B21, B23, B27: security headers on every response; markup in data is text within JSON; no open redirects."""
    hostile = "<svg onload=alert(1)><html>"
    created = await service.post("/api/v1/tasks", json={"job": "mail/send", "input": {"to": hostile}})
    shown = await service.get(created.headers["location"])
    assert shown.headers["content-type"] == "application/json"
    assert shown.json()["input"]["to"] == hostile
    for target in ("//evil.example", "/%5Cevil.example", "javascript:alert(1)", "http://evil.example"):
        response = await service.get(f"/?next={target}", role=None)
        assert (response.is_redirect, "evil" in response.text, "alert" in response.text) == (False, False, False)
    for answer in (shown, await service.get("/healthz", role=None), await service.get("/nowhere", role=None)):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-frame-options"].lower() == "deny"


# --- command line ----------------------------------------------------------------------------------------------------


class CommandLine:
    """Runs commands in this process, because a hundred processes would take minutes."""

    def __init__(self, folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._patch = monkeypatch
        self._loop = asyncio.Runner()
        self._connection = self._loop.run(asyncpg.connect(url))
        (folder / "tasks.py").write_text(TASKS)
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
        own = clean_environment(TENUTO_DATABASE=url, TENUTO_HOME=str(folder / "home"), TENUTO_APP="tasks:app")
        for name in [name for name in __import__("os").environ if name not in own]:
            monkeypatch.delenv(name)
        for name, value in own.items():
            monkeypatch.setenv(name, value)

    def __call__(self, case: CliCase) -> CommandResult:
        for name, content in case.files.items():
            (self._folder / name).write_bytes(content)
        sys.modules.pop("tasks", None)
        out, err = io.StringIO(), io.StringIO()
        with self._patch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(case.stdin.encode())))
            for name, value in case.env.items():
                patch.setenv(name, value)
            code = run(case.arguments)
        return CommandResult(code, out.getvalue(), err.getvalue())

    def query(self, query: Callable[[Any], Awaitable[T]]) -> T:
        async def run_query() -> T:
            return await query(self._connection)

        return self._loop.run(run_query())

    def counts(self) -> dict[str, int]:
        return dict(self.query(lambda connection: connection.fetchrow(_count_query())))

    def close(self) -> None:
        self._loop.run(self._connection.close())
        self._loop.close()


@pytest.fixture
def command_line(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    command_line = CommandLine(tmp_path, url, monkeypatch)
    yield command_line
    command_line.close()
    sys.modules.pop("tasks", None)


def _count_query() -> str:
    parts = [f"(SELECT count(*) FROM tenuto.{table}) AS {table}" for table in COUNTED_TABLES]
    return f"SELECT {', '.join(parts)}"


@pytest.mark.slow
def test_cli_refuses_bad_inputs_with_code_and_field_and_stores_nothing(command_line: CommandLine) -> None:
    created = command_line(CliCase("", ("manifest", "add", "demand", "--job", "double", "--on-demand")))
    assert created.code == exit_codes.OK, created.err
    wrong: list[str] = []
    before = command_line.counts()
    for case in cli_cases.REFUSED:
        name = f"{case.number} {' '.join(case.arguments)[:160]!r}"
        started_at = time.monotonic()
        try:
            ended = command_line(case)
            seconds = time.monotonic() - started_at
            as_json = command_line(case._replace(arguments=(*case.arguments, "--output", "json")))
        except BaseException as error:  # a command must not end with a traceback
            wrong.append(f"{name}: raised {error!r:.300}")
            continue
        if {ended.code, as_json.code} != {case.exit_code} or seconds > MAX_SECONDS:
            wrong.append(f"{name}: ended with {ended.code} after {seconds:.1f} s: {(ended.err or ended.out)[:300]}")
        if not ended.err.startswith("error: ") or "\n  try: " not in ended.err:
            wrong.append(f"{name}: no error with a remedy: {ended.err[:300]}")
        if len(ended.err) > 10_000 or CONTROL_CHARACTERS.search(ended.err):
            wrong.append(f"{name}: error is too long or contains control characters: {ended.err[:300]!r}")
        reported = json.loads(as_json.err)["error"]
        if not _matches(reported["code"], case.error_code) or not (reported["field"] or "").startswith(case.field):
            wrong.append(f"{name}: expected {case.error_code} {case.field}: {as_json.err[:300]}")
        if (after := command_line.counts()) != before:
            changed = {table: (before[table], after[table]) for table in after if after[table] != before[table]}
            wrong.append(f"{name}: changed {changed}")
            before = after
    assert wrong == [], "\n" + "\n".join(wrong)


@pytest.mark.slow
def test_cli_stores_hostile_text_unchanged_and_shows_no_control_characters(command_line: CommandLine) -> None:
    """B24–B26, B30, B58, B63, B65, B66, B74, B84, B87: in descriptions, reasons, messages and searches; in names unless
    they contain control characters."""
    for number, text in enumerate(cli_cases.HOSTILE_TEXTS):
        name = f"{text} {number}"
        added = ("--manual", "--step", 'double:{"n": 1}', "--description", text, "--reason", text)
        if CONTROL_CHARACTERS.search(name):
            refused = command_line(CliCase("", ("schedule", "add", name, *added, "--output", "json")))
            error_code = json.loads(refused.err)["error"]["code"]
            assert (refused.code, error_code) == (exit_codes.USAGE, "value.invisible_character"), refused.err
            name = f"text {number}"
        assert command_line(CliCase("", ("schedule", "add", name, *added))).code == exit_codes.OK, text
        assert command_line(CliCase("", ("log", "append", "texts", text))).code == exit_codes.OK, text
        for arguments in (
            ("schedule", "show", name),
            ("schedule", "list", f"--search={name}"),
            ("log", "show", "texts"),
        ):
            shown = command_line(CliCase("", arguments))
            assert shown.code == exit_codes.OK, (text, shown.err)
            assert not CONTROL_CHARACTERS.search(shown.out + shown.err), (text, arguments)
        found = command_line(CliCase("", ("schedule", "list", f"--search={name}", "--output", "json"))).json
        assert [each["name"] for each in found] == [name], "a wildcard matched other names"
    stored = command_line.query(
        lambda connection: connection.fetch("SELECT message FROM tenuto.log_entries ORDER BY id")
    )
    assert [row["message"] for row in stored] == list(cli_cases.HOSTILE_TEXTS)
    described = command_line.query(
        lambda connection: connection.fetch("SELECT description AS text FROM tenuto.schedules")
    )
    assert {row["text"] for row in described} == set(cli_cases.HOSTILE_TEXTS)


def test_cli_batch_submitted_again_with_its_key_duplicates_nothing(command_line: CommandLine) -> None:
    """B76, B88: a different file with the same key is refused."""
    assert (
        command_line(CliCase("", ("manifest", "add", "demand", "--job", "double", "--on-demand"))).code == exit_codes.OK
    )
    submit = ("batch", "submit", "demand", "--from", "rows.csv", "--batch-key", "once")
    first = command_line(CliCase("", submit, files={"rows.csv": b"n\n1\n2\n"}))
    assert first.code == exit_codes.OK, first.err
    again = command_line(CliCase("", submit, files={"rows.csv": b"n\n1\n2\n"}))
    assert (again.code, command_line.counts()["tasks"]) == (exit_codes.OK, 2)
    other = command_line(CliCase("", submit, files={"rows.csv": b"n\n7\n8\n9\n"}))
    assert (other.code, command_line.counts()["tasks"]) == (exit_codes.CONFLICT, 2), other.err
