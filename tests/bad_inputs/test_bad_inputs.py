"""The 98 bad inputs as one data-driven test over API and CLI: refused by field and with a remedy, or kept as the text
they are; nothing is stored of what is refused, nothing is lost, and every one of them is tried somewhere."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
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
from tests.bad_inputs.cli_cases import CliCase
from tests.bad_inputs.register import COVERED_BY_TESTS, MENTIONED_IN_TESTS, TITLES, find_missing
from tests.cli.conftest import TASKS, CommandResult, clean_environment

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
COUNTED = ("schedules", "tasks", "executions", "manifests", "batches", "activities", "dead_letters", "secrets",
           "api_keys", "log_entries", "queues", "schedule_versions")  # fmt: skip
SLOWEST = 20.0
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal would act upon."""


# --- which is tried where ---------------------------------------------------------------------------------------------


def test_every_one_of_the_98_is_tried_and_it_is_said_where() -> None:
    assert list(TITLES) == [f"B{number}" for number in range(1, 99)]
    places: dict[str, set[str]] = defaultdict(set)
    for bad in REQUESTS:
        places[bad.number].add("api: tests/api/test_bad_inputs.py (table)")
    for asked in http_cases.REFUSED:
        places[asked.number].add("api: tests/bad_inputs/http_cases.py")
    for typed in cli_cases.REFUSED:
        places[typed.number].add("cli: tests/bad_inputs/cli_cases.py")
    for number in cli_cases.KEPT_NUMBERS:
        places[number].add("cli: tests/bad_inputs/cli_cases.py (kept)")
    for number, tests in COVERED_BY_TESTS.items():
        for test in tests:
            assert _is_there(test), f"{number}: there is no {test}"
            places[number].add(f"python: {test}")
    for number in MENTIONED_IN_TESTS:
        places[number] |= {f"api: {test}" for test in _tests_that_say(number)}
    for number, title in TITLES.items():
        print(f"{number:4} {title}: " + "; ".join(sorted(places[number]) or ["NOWHERE"]))
    assert set(places) <= set(TITLES)
    assert find_missing(number for number, found in places.items() if found) == []


def _is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and (not name or name in _functions(ROOT / file))


def _functions(file: Path) -> dict[str, str]:
    """The tests of a file, each with its text."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    source = file.read_text(encoding="utf-8")
    nodes = [node for node in ast.parse(source).body if isinstance(node, functions)]
    return {node.name: ast.get_source_segment(source, node) or "" for node in nodes}


def _tests_that_say(number: str) -> list[str]:
    found = []
    for file in sorted((ROOT / "tests" / "api").glob("test_*.py")):
        for name, words in _functions(file).items():
            if name.startswith("test_") and re.search(rf"\b{number}\b", words):
                found.append(f"tests/api/{file.name}::{name}")
    return found


# --- over HTTP --------------------------------------------------------------------------------------------------------


async def test_over_http_each_is_refused_by_field_with_a_remedy_and_nothing_is_stored(
    service: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.api.state.rates, "guessed", lambda _address: None)  # tried elsewhere
    database = await service.app.open()
    wrong: list[str] = []
    before = await database.fetch_one(_counting())
    for asked in http_cases.REFUSED:
        began = time.monotonic()
        answer = await service.send(asked.method, asked.path, asked.role, **asked.options)
        about = f"{asked.number} {asked.method} {asked.path} {str(asked.options)[:120]}"
        if answer.status_code != asked.status or time.monotonic() - began > SLOWEST:
            wrong.append(f"{about}: {answer.status_code} {answer.text[:300]}")
            continue
        told = assert_problem(answer, asked.status)
        fields = [each["field"] for each in told.get("errors", [])]
        if asked.field and not any(field.startswith(asked.field) for field in fields):
            wrong.append(f"{about}: speaks of {fields}, not {asked.field}: {answer.text[:300]}")
        wrong += [
            f"{about}: does not say {words!r}: {answer.text[:300]}" for words in asked.expected_texts if words not in answer.text
        ]
        after = await database.fetch_one(_counting())
        if after != before:
            wrong.append(f"{about}: changed {before} to {after}")
            before = after
    assert wrong == []


async def test_no_page_of_another_site_can_frame_it_sniff_it_or_take_what_it_shows_for_a_page(service: ApiClient) -> None:
    """B21, B23, B27: headers on every answer; an output that is a page or a picture is text within JSON; nothing of an
    address leads on to another."""
    hostile = "<svg onload=alert(1)><html>"
    made = await service.post("/api/v1/tasks", json={"job": "mail/send", "input": {"to": hostile}})
    shown = await service.get(made.headers["location"])
    assert shown.headers["content-type"] == "application/json"
    assert shown.json()["input"]["to"] == hostile
    for where in ("//evil.example", "/%5Cevil.example", "javascript:alert(1)", "http://evil.example"):
        led = await service.get(f"/?next={where}", role=None)
        assert (led.is_redirect, "evil" in led.text, "alert" in led.text) == (False, False, False)
    for answer in (shown, await service.get("/healthz", role=None), await service.get("/nowhere", role=None)):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-frame-options"].lower() == "deny"


# --- at the prompt ----------------------------------------------------------------------------------------------------


class Prompt:
    """Somebody's terminal, all of it in this process: a hundred commands take seconds."""

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

    def __call__(self, typed: CliCase) -> CommandResult:
        for name, content in typed.files.items():
            (self._folder / name).write_bytes(content)
        sys.modules.pop("tasks", None)
        out, err = io.StringIO(), io.StringIO()
        with self._patch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.stdin.encode())))
            for name, value in typed.env.items():
                patch.setenv(name, value)
            code = run(typed.arguments)
        return CommandResult(code, out.getvalue(), err.getvalue())

    def ask(self, asking: Callable[[Any], Awaitable[T]]) -> T:
        async def asked() -> T:
            return await asking(self._connection)

        return self._loop.run(asked())

    def counts(self) -> dict[str, int]:
        return dict(self.ask(lambda connection: connection.fetchrow(_counting())))

    def close(self) -> None:
        self._loop.run(self._connection.close())
        self._loop.close()


@pytest.fixture
def prompt(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prompt]:
    prompt = Prompt(tmp_path, url, monkeypatch)
    yield prompt
    prompt.close()
    sys.modules.pop("tasks", None)


def _counting() -> str:
    parts = [f"(SELECT count(*) FROM tenuto.{table}) AS {table}" for table in COUNTED]
    return f"SELECT {', '.join(parts)}"


def test_at_the_prompt_each_is_refused_by_field_with_a_remedy_and_nothing_is_stored(prompt: Prompt) -> None:
    made = prompt(CliCase("", ("manifest", "add", "demand", "--job", "double", "--on-demand")))
    assert made.code == exit_codes.OK, made.err
    wrong: list[str] = []
    before = prompt.counts()
    for typed in cli_cases.REFUSED:
        about = f"{typed.number} {' '.join(typed.arguments)[:160]!r}"
        began = time.monotonic()
        try:
            ended = prompt(typed)
        except BaseException as error:  # a traceback is what nobody should ever see
            wrong.append(f"{about}: raised {error!r:.300}")
            continue
        seconds = time.monotonic() - began
        if ended.code != typed.code or seconds > SLOWEST:
            wrong.append(f"{about}: ended with {ended.code} after {seconds:.1f} s: {(ended.err or ended.out)[:300]}")
        wrong += [
            f"{about}: does not say {words!r}: {ended.err[:300]}" for words in typed.expected_texts if words not in ended.err
        ]
        if len(ended.err) > 10_000 or OBEYED.search(ended.err):
            wrong.append(f"{about}: says too much, or what a terminal obeys: {ended.err[:300]!r}")
        if (after := prompt.counts()) != before:
            changed = {name: (before[name], after[name]) for name in after if after[name] != before[name]}
            wrong.append(f"{about}: changed {changed}")
            before = after
    assert wrong == [], "\n" + "\n".join(wrong)


def test_at_the_prompt_hostile_text_is_kept_as_it_is_and_shown_without_what_a_terminal_obeys(prompt: Prompt) -> None:
    """B24–B26, B30, B58, B63, B65, B66, B74, B84, B87: as descriptions, reasons, messages, inputs, searches; as names,
    unless a terminal would obey them."""
    for number, text in enumerate(cli_cases.HOSTILE_TEXTS):
        name = f"{text} {number}"
        added = ("--manual", "--step", 'double:{"n": 1}', "--description", text, "--reason", text)
        if OBEYED.search(name):
            refused = prompt(CliCase("", ("schedule", "add", name, *added)))
            assert (refused.code, "contains U+" in refused.err) == (exit_codes.USAGE, True), refused.err
            name = f"text {number}"
        assert prompt(CliCase("", ("schedule", "add", name, *added))).code == exit_codes.OK, text
        assert prompt(CliCase("", ("log", "append", "texts", text))).code == exit_codes.OK, text
        for words in (("schedule", "show", name), ("schedule", "list", f"--search={name}"), ("log", "show", "texts")):
            shown = prompt(CliCase("", words))
            assert shown.code == exit_codes.OK, (text, shown.err)
            assert not OBEYED.search(shown.out + shown.err), (text, words)
        found = prompt(CliCase("", ("schedule", "list", f"--search={name}", "--output", "json"))).json
        assert [each["name"] for each in found] == [name], "a wildcard stands for itself"
    kept = prompt.ask(lambda connection: connection.fetch("SELECT message FROM tenuto.log_entries ORDER BY id"))
    assert [row["message"] for row in kept] == list(cli_cases.HOSTILE_TEXTS)
    described = prompt.ask(lambda connection: connection.fetch("SELECT description AS text FROM tenuto.schedules"))
    assert {row["text"] for row in described} == set(cli_cases.HOSTILE_TEXTS)


def test_a_batch_that_is_submitted_again_under_its_key_doubles_nothing(prompt: Prompt) -> None:
    """B76, B88: nor does another file under the same key change anything, and it is told so."""
    assert prompt(CliCase("", ("manifest", "add", "demand", "--job", "double", "--on-demand"))).code == exit_codes.OK
    submit = ("batch", "submit", "demand", "--from", "rows.csv", "--batch-key", "once")
    first = prompt(CliCase("", submit, files={"rows.csv": b"n\n1\n2\n"}))
    assert first.code == exit_codes.OK, first.err
    again = prompt(CliCase("", submit, files={"rows.csv": b"n\n1\n2\n"}))
    assert (again.code, prompt.counts()["tasks"]) == (exit_codes.OK, 2)
    other = prompt(CliCase("", submit, files={"rows.csv": b"n\n7\n8\n9\n"}))
    assert (other.code, prompt.counts()["tasks"]) == (exit_codes.CONFLICT, 2)
    assert "other inputs came in under this key" in other.err
