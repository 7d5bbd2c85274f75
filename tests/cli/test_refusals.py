"""What cannot be meant is refused: by the option it was typed into, in a line, and never by a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tenuto.cli.option_parsing import by_option, value_of, whole_number
from tenuto.errors import Conflict, Invalid
from tests.cli.conftest import Shell

NOT_TEXT = "\udcff"
"""A byte that is not UTF-8, as Python has it from the command line."""
MANIFEST = ("manifest", "add", "m", "--job", "double", "--set", "n=1")
CRON = "cron explain '0 6 * * *'"
ONCE = ("once", "add", "double", "--in", "2h")


def refused(shell: Shell, *words: str) -> str:
    ended = shell(*words)
    assert (ended.code, ended.out) == (2, ""), ended
    return ended.err


# ---- what was typed, read


def test_a_value_is_json_or_else_text_and_no_name_stands_in_it_twice() -> None:
    assert [value_of(text, "--set") for text in ("5", '"5"', "five", "[1", "9" * 5000)] == [
        5,
        "5",
        "five",
        "[1",
        "9" * 5000,
    ]
    with pytest.raises(Invalid, match="there twice") as error:
        value_of('{"a": 1, "a": 2}', "--set x.n")
    assert error.value.field == "--set x.n"


@pytest.mark.parametrize("text", ["", "x", "1.5", "٣", "1_000", " 1", "-5", "9" * 5000, "1\n"])
def test_what_is_no_whole_number_is_refused_however_long_it_is(text: str) -> None:
    with pytest.raises(Invalid, match="is not a whole number") as error:
        whole_number(text, "--slots", "write it as mail=5")
    assert len(error.value.message) < 100
    assert whole_number("05", "--slots", "") == 5


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
def test_a_refusal_names_the_option_it_was_typed_into(field: str | None, option: str | None) -> None:
    options = {"name": "NAME", "payload": "--payload", "retry.": "--retry-wait", "properties.": "--set {}"}
    with pytest.raises(Invalid) as error, by_option(options), by_option(options):
        raise Invalid("no", field=field)
    assert error.value.field == option


def test_what_is_no_refusal_of_a_value_is_renamed_only_if_it_is_known() -> None:
    for field, option in (("name", "NAME"), ("batch", "batch")):
        with pytest.raises(Conflict) as error, by_option({"name": "NAME"}, otherwise="--set {}"):
            raise Conflict("no", field=field)
        assert error.value.field == option


# ---- empty text


@pytest.mark.parametrize("option", ["--cron", "--every", "--at", "--zone", "--start", "--exclude"])
def test_an_empty_when_is_refused_and_nothing_is_made_or_changed(shell: Shell, option: str) -> None:
    clock = () if option in ("--cron", "--every", "--at") else ("--cron", "0 6 * * *")
    assert f"error: {option}: " in refused(shell, *MANIFEST, *clock, option, "")
    assert shell("manifest", "list", "-o", "json").json == []
    assert shell(*MANIFEST, "--cron", "0 6 * * *").code == 0
    assert shell("schedule", "add", "s", "--cron", "0 6 * * *", "--step", "last").code == 0
    for edit in (("manifest", "edit", "m"), ("schedule", "edit", "s")):
        assert f"error: {option}: " in refused(shell, *edit, option, "")


@pytest.mark.parametrize("option", ["--queues", "--name", "--home", "--database", "--app"])
def test_empty_text_on_the_command_line_does_not_stand_for_the_default(shell: Shell, option: str) -> None:
    assert refused(shell, "worker", option, "") == f"error: {option}: is empty\n  try: leave it out, or say which\n"


def test_an_empty_variable_of_the_environment_counts_as_not_given(shell: Shell) -> None:
    ended = shell("task", "list", "-o", "json", TENUTO_APP="", TENUTO_WORKER_QUEUES="")
    assert (ended.code, ended.json) == (0, [])


# ---- the option to blame


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*ONCE, "--payload", "@nosuch"], "--payload: @nosuch cannot be read"),
        ([*ONCE], "--payload, n: Field required"),
        ([*ONCE, "--payload", '{"n": 1}', "--tag", ""], "--tag: must be"),
        ([*ONCE, "--payload", '{"n": 1}', "--timeout", "x"], "--timeout: 'x' is not a span"),
        (["once", "add", "double", "--at", "soon", "--payload", '{"n": 1}'], "--at: 'soon' is not an instant"),
        (["once", "add", "nosuch", "--in", "2h"], "TYPE: 'nosuch' is not known here"),
        ([*MANIFEST, "--properties", "@nosuch"], "--properties: @nosuch cannot be read"),
        (["log", "append", "l", "x", "--fields", "@nosuch"], "--fields: @nosuch cannot be read"),
        (["simulate", "--zone", "x"], "--zone: 'x' is not a time zone"),
        (["simulate", "--from", "2031-01-02", "--to", "2031-01-01"], "--to: is not after the beginning"),
        (["simulate", "--slots", "9" * 5000], "--slots: "),
        (["manifest", "group", "g", "--max-active", "0"], "--max-active: must be from 1"),
        (["queue", "limit", "mail", "0"], "N: must be from 1"),
        (["queue", "limit", "mail", "9" * 5000], "N: "),
        (["schedule", "add", "s", "--manual", "--step", "last priority=9999"], "--step, priority: must be"),
        (["schedule", "add", "s", "--manual", "--step", 'double:{"n": "x"}'], "--step, double.n: Input should be"),
        (["schedule", "add", " s", "--manual", "--step", "last"], "NAME: begins or ends with a blank"),
        (["schedule", "ledger", "--below", "019a8b3c-1d2e-7000-8000-000000000000"], "--below: goes with --before"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_a_command_refuses_by_the_option_or_the_place_on_the_line(shell: Shell, words: list[str], said: str) -> None:
    assert refused(shell, *words).startswith(f"error: {said}")


def test_an_edit_and_a_run_of_a_schedule_refuse_by_what_was_typed(shell: Shell) -> None:
    assert shell("schedule", "add", "s", "--manual", "--step", 'double:{"n": 1} name=x').code == 0
    for words in (("run", "s"), ("edit", "s")):
        assert "error: --set x.n: Input should be a valid integer" in refused(
            shell, "schedule", *words, "--set", "x.n=x"
        )
        assert "error: --set y: there is no step of that name" in refused(shell, "schedule", *words, "--set", "y.n=1")
    assert "error: --rename: must be a text" in refused(shell, "schedule", "edit", "s", "--rename", "")


@pytest.mark.parametrize(("option", "value"), [("--priority", "9999"), ("--max-active", "0")])
def test_only_a_wrong_job_or_input_points_to_the_list_of_jobs(shell: Shell, option: str, value: str) -> None:
    said = refused(shell, *MANIFEST, option, value)
    assert f"error: {option}: must be a whole number" in said
    assert "  try: tenuto manifest add --help\n" in said
    assert "tenuto job list" in refused(shell, *MANIFEST, "--set", "n=x")


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["schedule", "show", NOT_TEXT], "NAME"),
        (["schedule", "add", NOT_TEXT, "--manual", "--step", "last"], "NAME"),
        (["manifest", "show", NOT_TEXT], "EXTERNAL_ID"),
        (["activity", "list", "--name", NOT_TEXT], "--name"),
    ],
)
def test_a_name_that_is_not_utf_8_is_refused_in_the_same_words_everywhere(
    shell: Shell, words: list[str], place: str
) -> None:
    assert f"error: {place}: contains half of a surrogate pair" in refused(shell, *words)


def test_a_file_may_be_called_by_any_bytes(shell: Shell) -> None:
    Path(shell.folder, f"{NOT_TEXT}.yaml").write_text("schedules: [{name: s, steps: [{job: last}]}]")
    ended = shell("plan", f"{NOT_TEXT}.yaml")
    assert (ended.code, ended.err) == (2, "1 to create\n")


# ---- one shape


def test_a_queue_and_a_group_of_which_nothing_is_said_have_the_shape_of_the_others(shell: Shell) -> None:
    bare = shell("queue", "resume", "nosuch", "-o", "json").json
    assert bare.keys() == shell("queue", "limit", "mail", "5", "-o", "json").json.keys()
    assert (bare["name"], bare["queued"], bare["paused_at"]) == ("nosuch", 0, None)
    every = shell("manifest", "group", "*", "-o", "json").json
    assert every.keys() == shell("manifest", "group", "g", "--max-active", "5", "-o", "json").json.keys()
    assert (every["name"], every["max_active"], every["enabled"]) == ("*", None, True)


def test_a_traceback_is_shown_of_a_plan_too_if_somebody_wants_it(shell: Shell) -> None:
    assert shell("plan", "nosuch.yaml").code == 1
    ended = shell("plan", "nosuch.yaml", TENUTO_DEBUG="1")
    assert (ended.code, "Traceback" in ended.err) == (1, True)


# ---- where the answer goes


def in_sh(shell: Shell, words: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """A command in a real shell, with what is done to its streams there."""
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m tenuto {words}"],
        cwd=shell.folder, env=shell.environment, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=100,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("where", [">&-", "> /dev/full"])
@pytest.mark.parametrize("words", [CRON, f"{CRON} -o json", "version", "--help"])
def test_an_answer_that_cannot_be_written_is_an_error_line_and_a_code(
    open_shell: Callable[..., Shell], where: str, words: str
) -> None:
    done = in_sh(open_shell(), f"{words} {where}")
    assert (done.returncode, done.stderr.startswith("error: ")) == (1, True), done.stderr
    assert ("No space left" if "full" in where else "Bad file descriptor") in done.stderr


def test_talk_that_nobody_hears_keeps_nothing_from_being_done(open_shell: Callable[..., Shell]) -> None:
    assert in_sh(open_shell(), "version 2>&-").stdout.startswith("tenuto ")
    assert in_sh(open_shell(), "version <&- 2>/dev/full").stdout.startswith("tenuto ")
    assert in_sh(open_shell(), "nosuch >&- 2>&-").returncode == 2


def test_a_pipe_that_was_closed_ends_with_1_and_without_a_word(open_shell: Callable[..., Shell]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = in_sh(open_shell(), f"{CRON} -o json", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
