"""Errors of commands: they name the option, are one message or one JSON object, and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tenuto.cli.option_parsing import parse_json_or_text, parse_whole_number, translate_error_fields
from tenuto.errors import Conflict, Invalid
from tests.cli.conftest import Shell
from tests.support.errors import raises_code

NOT_TEXT = "\udcff"
"""A byte that is not UTF-8, as Python represents it in command line arguments."""
MANIFEST = ("manifest", "add", "m", "--job", "double", "--set", "n=1")
CRON = "cron explain '0 6 * * *'"
ONCE = ("once", "add", "double", "--in", "2h")


def usage_error(shell: Shell, *arguments: str) -> dict[str, Any]:
    """Run a command that must end with a usage error; return the error."""
    ended = shell(*arguments, "-o", "json")
    assert (ended.code, ended.out) == (2, ""), ended
    return ended.error


# ---- parsing


def test_value_is_json_without_duplicate_keys_or_else_text() -> None:
    assert [parse_json_or_text(text, "--set") for text in ("5", '"5"', "five", "[1", "9" * 5000)] == [
        5,
        "5",
        "five",
        "[1",
        "9" * 5000,
    ]
    with raises_code("cli.json.duplicate_key") as error:
        parse_json_or_text('{"a": 1, "a": 2}', "--set x.n")
    assert error.value.field == "--set x.n"


@pytest.mark.parametrize("text", ["", "x", "1.5", "٣", "1_000", " 1", "-5", "9" * 5000, "1\n"])
def test_text_that_is_no_whole_number_is_rejected_with_a_short_message(text: str) -> None:
    with raises_code("cli.option.not_a_whole_number") as error:
        parse_whole_number(text, "--slots", "write it as mail=5")
    assert len(error.value.message) < 100
    assert parse_whole_number("05", "--slots", "") == 5


@pytest.mark.parametrize(
    ("field", "option"),
    [
        ("max_active", "--max-active"),
        ("name", "NAME"),
        ("payload", "--payload"),
        ("payload.n", "--payload, n"),
        ("retry.base_seconds", "--retry-wait"),
        ("properties.a_b.c", "--set a_b.c"),
        ("--cron", "--cron"),
        ("EXTERNAL_ID", "EXTERNAL_ID"),
        (None, None),
    ],
)
def test_field_of_an_error_is_translated_to_the_option(field: str | None, option: str | None) -> None:
    options = {"name": "NAME", "payload": "--payload", "retry.": "--retry-wait", "properties.": "--set {}"}
    with pytest.raises(Invalid) as error, translate_error_fields(options), translate_error_fields(options):
        raise Invalid("no", code="test.error", field=field)
    assert error.value.field == option


def test_field_of_a_conflict_is_translated_only_if_it_is_known() -> None:
    for field, option in (("name", "NAME"), ("batch", "batch")):
        with pytest.raises(Conflict) as error, translate_error_fields({"name": "NAME"}, otherwise="--set {}"):
            raise Conflict("no", code="test.error", field=field)
        assert error.value.field == option


# ---- empty text


@pytest.mark.parametrize("option", ["--cron", "--every", "--at", "--zone", "--start", "--exclude"])
def test_empty_trigger_option_is_rejected_and_nothing_is_created_or_changed(shell: Shell, option: str) -> None:
    trigger = () if option in ("--cron", "--every", "--at") else ("--cron", "0 6 * * *")
    assert usage_error(shell, *MANIFEST, *trigger, option, "")["field"] == option
    assert shell("manifest", "list", "-o", "json").json == []
    assert shell(*MANIFEST, "--cron", "0 6 * * *").code == 0
    assert shell("schedule", "add", "s", "--cron", "0 6 * * *", "--step", "last").code == 0
    for edit in (("manifest", "edit", "m"), ("schedule", "edit", "s")):
        assert usage_error(shell, *edit, option, "")["field"] == option


@pytest.mark.parametrize("option", ["--queues", "--name", "--home", "--database", "--app"])
def test_empty_option_does_not_select_the_default(shell: Shell, option: str) -> None:
    ended = shell("worker", option, "")
    assert ended.code == 2
    assert ended.err == f"error: {option} is empty\n  try: omit the option, or give a value\n"


def test_empty_environment_variable_counts_as_not_given(shell: Shell) -> None:
    ended = shell("task", "list", "-o", "json", TENUTO_APP="", TENUTO_WORKER_QUEUES="")
    assert (ended.code, ended.json) == (0, [])


# ---- options named in errors


@pytest.mark.parametrize(
    ("arguments", "field", "code"),
    [
        ([*ONCE, "--payload", "@nosuch"], "--payload", "cli.file.not_readable"),
        ([*ONCE], "--payload, n", "job.input.invalid"),
        ([*ONCE, "--payload", '{"n": 1}', "--tag", ""], "--tag", "value.label.invalid"),
        ([*ONCE, "--payload", '{"n": 1}', "--timeout", "x"], "--timeout", "value.duration.invalid"),
        (["once", "add", "double", "--at", "soon", "--payload", '{"n": 1}'], "--at", "one_shot.exec_at.invalid"),
        (["once", "add", "nosuch", "--in", "2h"], "TYPE", "one_shot.prompt_type.unknown"),
        ([*MANIFEST, "--properties", "@nosuch"], "--properties", "cli.file.not_readable"),
        (["log", "append", "l", "x", "--fields", "@nosuch"], "--fields", "cli.file.not_readable"),
        (["simulate", "--zone", "x"], "--zone", "trigger.zone.unknown"),
        (["simulate", "--from", "2031-01-02", "--to", "2031-01-01"], "--to", "simulation.range.empty"),
        (["simulate", "--slots", "9" * 5000], "--slots", "cli.option.not_a_whole_number"),
        (["manifest", "group", "g", "--max-active", "0"], "--max-active", "manifest.max_active.out_of_range"),
        (["queue", "limit", "mail", "0"], "N", "queue.max_running.out_of_range"),
        (["queue", "limit", "mail", "9" * 5000], "N", "cli.option.not_a_whole_number"),
        (
            ["schedule", "add", "s", "--manual", "--step", "last priority=9999"],
            "--step, priority",
            "task.priority.out_of_range",
        ),
        (["schedule", "add", "s", "--manual", "--step", 'double:{"n": "x"}'], "--step, double.n", "job.input.invalid"),
        (["schedule", "add", " s", "--manual", "--step", "last"], "NAME", "schedule.name.invalid"),
        (
            ["schedule", "ledger", "--below", str(UUID(int=1))],
            "--below",
            "cli.option.requires_other",
        ),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_error_of_a_command_names_the_option_or_argument(
    shell: Shell, arguments: list[str], field: str, code: str
) -> None:
    error = usage_error(shell, *arguments)
    assert (error["field"], error["code"]) == (field, code)
    assert error["message"]
    assert error["remedy"]


def test_error_of_an_edit_or_a_run_of_a_schedule_names_the_override(shell: Shell) -> None:
    assert shell("schedule", "add", "s", "--manual", "--step", 'double:{"n": 1} name=x').code == 0
    for arguments in (("run", "s"), ("edit", "s")):
        assert usage_error(shell, "schedule", *arguments, "--set", "x.n=x")["field"] == "--set x.n"
        assert usage_error(shell, "schedule", *arguments, "--set", "y.n=1")["field"] == "--set y"
    assert usage_error(shell, "schedule", "edit", "s", "--rename", "")["field"] == "--rename"


@pytest.mark.parametrize(("option", "value"), [("--priority", "9999"), ("--max-active", "0")])
def test_only_an_invalid_job_or_input_has_the_job_list_as_remedy(shell: Shell, option: str, value: str) -> None:
    error = usage_error(shell, *MANIFEST, option, value)
    assert error["field"] == option
    assert "tenuto job list" not in error["remedy"]
    assert "tenuto job list" in usage_error(shell, *MANIFEST, "--set", "n=x")["remedy"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["schedule", "show", NOT_TEXT], "NAME"),
        (["schedule", "add", NOT_TEXT, "--manual", "--step", "last"], "NAME"),
        (["manifest", "show", NOT_TEXT], "EXTERNAL_ID"),
        (["activity", "list", "--name", NOT_TEXT], "--name"),
    ],
)
def test_name_that_is_not_utf_8_is_rejected_with_the_same_code_everywhere(
    shell: Shell, arguments: list[str], field: str
) -> None:
    error = usage_error(shell, *arguments)
    assert (error["field"], error["code"]) == (field, "value.lone_surrogate")


def test_file_name_may_contain_any_bytes(shell: Shell) -> None:
    Path(shell.folder, f"{NOT_TEXT}.yaml").write_text("schedules: [{name: s, steps: [{job: last}]}]")
    ended = shell("plan", f"{NOT_TEXT}.yaml")
    assert (ended.code, ended.err) == (2, "1 to create\n")


# ---- JSON


def test_queue_and_group_without_settings_have_the_fields_of_the_others(shell: Shell) -> None:
    bare = shell("queue", "resume", "nosuch", "-o", "json").json
    assert bare.keys() == shell("queue", "limit", "mail", "5", "-o", "json").json.keys()
    assert (bare["name"], bare["queued_count"], bare["paused_at"]) == ("nosuch", 0, None)
    every = shell("manifest", "group", "*", "-o", "json").json
    assert every.keys() == shell("manifest", "group", "g", "--max-active", "5", "-o", "json").json.keys()
    assert (every["name"], every["max_active"], every["enabled"]) == ("*", None, True)


def test_error_as_json_is_one_object_on_stderr(open_shell: Callable[..., Shell]) -> None:
    ended = open_shell()("cron", "explain", "@daily", "--zone", "x", "-o", "json")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.error.keys() == {"code", "message", "field", "remedy"}
    assert ended.error["field"] == "--zone"


@pytest.mark.parametrize("option", [("-o", "json"), ("--output", "json"), ("--output=json",), ("-ojson",)])
def test_usage_error_as_json_is_one_object_on_stderr(open_shell: Callable[..., Shell], option: tuple[str, ...]) -> None:
    ended = open_shell()("task", "list", "--limit", "0", *option)
    assert (ended.code, ended.out) == (2, "")
    assert (ended.error["code"], ended.error["field"]) == ("cli.usage.invalid", "--limit")
    assert ended.error["remedy"] == "tenuto task list --help"


def test_traceback_of_a_plan_is_printed_on_request(shell: Shell) -> None:
    assert shell("plan", "nosuch.yaml").code == 1
    ended = shell("plan", "nosuch.yaml", TENUTO_DEBUG="1")
    assert (ended.code, "Traceback" in ended.err) == (1, True)


# ---- stdout


def run_in_bash(shell: Shell, arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run a command line in bash, with its redirections."""
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m tenuto {arguments}"],
        cwd=shell.folder, env=shell.environment, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=100,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("redirection", [">&-", "> /dev/full"])
@pytest.mark.parametrize("arguments", [CRON, f"{CRON} -o json", "version", "--help"])
def test_output_that_cannot_be_written_is_an_error_with_exit_code_1(
    open_shell: Callable[..., Shell], redirection: str, arguments: str
) -> None:
    done = run_in_bash(open_shell(), f"{arguments} {redirection}")
    assert (done.returncode, done.stderr.startswith(("error: ", '{"error": '))) == (1, True), done.stderr
    assert ("No space left" if "full" in redirection else "Bad file descriptor") in done.stderr


def test_command_succeeds_although_messages_cannot_be_written(open_shell: Callable[..., Shell]) -> None:
    assert run_in_bash(open_shell(), "version 2>&-").stdout.startswith("tenuto ")
    assert run_in_bash(open_shell(), "version <&- 2>/dev/full").stdout.startswith("tenuto ")
    assert run_in_bash(open_shell(), "nosuch >&- 2>&-").returncode == 2


def test_closed_pipe_ends_with_1_and_no_message(open_shell: Callable[..., Shell]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run_in_bash(open_shell(), f"{CRON} -o json", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
