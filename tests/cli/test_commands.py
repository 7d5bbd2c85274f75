"""Commands: results on stdout, messages on stderr, exit codes, and errors with a remedy."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import asyncpg
import pytest

from tenuto import Tenuto
from tenuto.clock import monotonic_seconds
from tenuto.model.definitions.policies import LAST_CHANCE_KEY
from tenuto.postgres.database import Database
from tests.cli.conftest import Shell
from tests.conftest import database_url
from tests.support.tasks import create_task

# ---- lists


@pytest.mark.parametrize("arguments", ["task list", "activity list", "worker list", "queue list"])
def test_empty_list_is_an_empty_json_array_or_a_message(shell: Shell, arguments: str) -> None:
    ended = shell(*arguments.split(), "-o", "json")
    assert (ended.code, ended.json, ended.err) == (0, [], "")
    for_people = shell(*arguments.split())
    assert (for_people.code, for_people.out) == (0, "")
    assert for_people.err.startswith("no ")


def test_list_as_json_has_ids_as_text_and_instants_in_iso_8601(shell: Shell) -> None:
    task_id = shell("run", "double", "--input", '{"n": 2}', "-q").out.strip()
    (task,) = shell("task", "list", "-o", "json").json
    assert task["id"] == task_id == str(UUID(task_id))
    assert datetime.fromisoformat(task["created_at"]).tzinfo is not None
    assert (task["state"], task["name"]) == ("queued", "double")


def test_task_list_is_filtered_and_paged(shell: Shell) -> None:
    ids = [shell("run", "double", "--input", f'{{"n": {n}}}', "-q").out.strip() for n in range(3)]
    shell("run", "last")
    newest = shell("task", "list", "--queue", "default", "--name", "double", "--limit", "2", "-o", "json").json
    assert [task["id"] for task in newest] == [ids[2], ids[1]]
    page = shell("task", "list", "--queue", "default", "--limit", "2", "--below", ids[1], "-o", "json").json
    assert [task["id"] for task in page] == [ids[0]]
    assert shell("task", "list", "--state", "running", "-o", "json").json == []
    assert shell("task", "list", "--tag", "none", "-o", "json").json == []
    assert f"--below {ids[1]}" in shell("task", "list", "--queue", "default", "--limit", "2").err


def test_table_in_a_pipe_is_not_truncated(shell: Shell) -> None:
    task_id = shell("run", "last", "-q").out.strip()
    header, row = shell("task", "list", COLUMNS="40").out.splitlines()
    assert header.split()[:4] == ["id", "state", "name", "queue"]
    assert row.split()[:5] == [task_id, "◌", "queued", "last", "slow"]


@pytest.mark.slow
def test_unreachable_database_is_reported_soon_unless_connect_seconds_is_set(shell: Shell) -> None:
    unreachable = "postgresql://127.0.0.1:1/none"
    started_at = monotonic_seconds()
    ended = shell("task", "list", "--database", unreachable)
    assert monotonic_seconds() - started_at < 9, "services wait for 10 s, commands do not"
    assert ended.code == 8
    assert ended.err.startswith("error: ")
    assert "127.0.0.1" in ended.err.partition("\n")[0]
    started_at = monotonic_seconds()
    shell("task", "list", "--database", unreachable, TENUTO_CONNECT_SECONDS="2.5")
    assert monotonic_seconds() - started_at >= 2.5


# ---- run


async def test_run_with_wait_prints_the_result(shell: Shell, app: Tenuto) -> None:
    shell.start_service("worker").wait_for_line("worker started")
    ended = await asyncio.to_thread(shell, "run", "double", "--input", '{"n": 21}', "--wait", "--timeout", "60")
    assert (ended.code, ended.out) == (0, "42\n")
    assert "✓ completed at attempt 1" in ended.err
    (record,) = await app.activities()
    assert (record.initiator_type, record.name) == ("user", "double")


def test_run_reads_input_from_a_file_or_from_stdin(shell: Shell) -> None:
    (shell.folder / "input.json").write_text('{"n": 5}')
    assert shell("run", "double", "--input", "@input.json").code == 0
    assert shell("run", "double", "--input", "-", stdin='{"n": 6}').code == 0
    inputs = [shell("task", "show", task["id"], "-o", "json").json for task in shell("task", "list", "-o", "json").json]
    assert [shown["task"]["input"] for shown in inputs] == [{"n": 6}, {"n": 5}]


def test_run_with_wait_ends_with_1_if_the_task_fails(shell: Shell) -> None:
    shell.start_service("worker").wait_for_line("worker started")
    ended = shell("run", "hopeless", "--wait", "--timeout", "60")
    assert (ended.code, ended.out) == (1, "")
    assert "✕ failed" in ended.err
    assert "tenuto task show" in ended.err


def test_run_with_wait_reports_a_missing_worker_and_can_be_interrupted(shell: Shell) -> None:
    waiting = shell.start_service("run", "double", "--input", '{"n": 1}', "--wait")
    waiting.wait_for_line("no worker serves queue default")
    waiting.wait_for_line("task ")
    assert waiting.stop(signal.SIGINT) == 130


def test_run_with_wait_ends_with_7_after_its_timeout(shell: Shell) -> None:
    ended = shell("run", "double", "--input", '{"n": 1}', "--wait", "--timeout", "0.1")
    assert ended.code == 7
    assert "has not ended after 0.1 s" in ended.err
    assert "tenuto task why" in ended.err.partition("  try: ")[2]


def test_job_list_shows_the_input_of_each_job(shell: Shell) -> None:
    assert "n: integer" in shell("job", "list").out
    jobs = {job["name"]: job for job in shell("job", "list", "-o", "json").json}
    assert set(jobs) == {"double", "third_time", "last", "hopeless"}
    assert jobs["double"]["input_schema"]["properties"]["n"]["type"] == "integer"
    assert jobs["last"]["queue"] == "slow"


# ---- one task


def test_task_show_lists_every_attempt(shell: Shell) -> None:
    shell.start_service("worker").wait_for_line("worker started")
    task_id = shell("run", "third_time", "--wait", "--timeout", "60", "-o", "json").json["task_id"]
    shown = shell("task", "show", task_id)
    assert shown.code == 0
    assert shown.out.count("✕ failed") == 2
    assert shown.out.splitlines()[0].startswith("✓ completed  third_time")
    assert "ValueError: not yet" in shown.out
    assert "this is attempt 3" in shown.out
    assert "this is attempt 1" not in shown.out
    assert "this is attempt 1" in shell("task", "show", task_id, "--log").out
    document = shell("task", "show", task_id, "-o", "json").json
    assert document["task"] is None
    assert [attempt["state"] for attempt in document["attempts"]] == ["failed", "failed", "completed"]
    assert {attempt["worker"] for attempt in document["attempts"]} == {
        shell("worker", "list", "-o", "json").json[0]["name"]
    }


def test_id_of_a_later_attempt_finds_its_task(shell: Shell) -> None:
    shell.start_service("worker").wait_for_line("worker started")
    last = shell("run", "third_time", "--wait", "--timeout", "60", "-o", "json").json
    assert last["id"] != last["task_id"]
    assert shell("task", "show", last["id"], "-o", "json").json["id"] == last["task_id"]
    assert shell("activity", "show", last["id"], "-o", "json").json["attempt"] == 3
    assert "attempt 3" in shell("activity", "show", last["id"]).out


def test_unambiguous_id_prefix_is_accepted(shell: Shell) -> None:
    first, second = (shell("run", "double", "--input", '{"n": 1}', "-q").out.strip() for _ in range(2))
    same = next(place for place in range(36) if first[place] != second[place])
    assert shell("task", "show", first[: same + 1], "-o", "json").json["id"] == first
    several = shell("task", "show", first[:same], "-o", "json")
    assert (several.code, several.error["code"]) == (7, "id.prefix.ambiguous")


def test_queued_task_is_cancelled_at_once_with_its_actor(shell: Shell) -> None:
    task_id = shell("run", "double", "--input", '{"n": 1}', "-q").out.strip()
    ended = shell("task", "cancel", task_id, LOGNAME="ana")
    assert ended.code == 0
    assert f"task {task_id} cancelled by ana" in ended.err
    assert "cancelled by ana" in shell("task", "show", task_id).out
    again = shell("task", "cancel", task_id, "-o", "json")
    assert (again.code, again.error["code"]) == (7, "task.already_ended")


def test_running_task_is_asked_to_stop(shell: Shell) -> None:
    worker = shell.start_service("worker", "--queues", "slow")
    worker.wait_for_line("worker started")
    task_id = shell("run", "last", "-q").out.strip()
    worker.wait_for_line("under way")
    assert "● running" in shell("task", "show", task_id).out
    ended = shell("task", "cancel", task_id, "-o", "json", LOGNAME="ana")
    assert ended.json == {"id": task_id, "outcome": "stopping", "by": "ana"}
    worker.stop()
    assert shell("task", "show", task_id, "-o", "json").json["attempts"][-1]["state"] == "cancelled"


def test_control_characters_in_data_do_not_reach_the_terminal(shell: Shell) -> None:
    shell.start_service("worker").wait_for_line("worker started")
    task_id = shell("run", "hopeless", "--wait", "--timeout", "60", "-o", "json").json["id"]
    for arguments in (("task", "show", task_id, "--log"), ("activity", "list"), ("activity", "show", task_id)):
        shown = shell(*arguments).out
        assert "this cannot be" in shown
        assert not {character for character in shown if ord(character) < 32 or 127 <= ord(character) < 160} - {"\n"}
    as_json = shell("activity", "show", task_id, "-o", "json")
    assert "\x9b" not in as_json.out
    assert as_json.json["error"]["message"] == "this \x1b[31mcannot\x1b[0m be \x9bdone"


# ---- queues and workers


def test_queue_is_limited_paused_and_resumed(shell: Shell) -> None:
    assert shell("queue", "limit", "mail", "5").code == 0
    ended = shell("queue", "pause", "mail", "--reason", "server is down", LOGNAME="ana")
    assert "queue mail paused by ana" in ended.err
    (mail,) = shell("queue", "list", "-o", "json").json
    assert (mail["max_running"], mail["paused_by"], mail["reason"]) == (5, "ana", "server is down")
    assert "by ana: server is down" in shell("queue", "list").out
    assert shell("queue", "resume", "mail", "-o", "json").json["paused_at"] is None
    assert shell("queue", "limit", "mail", "none", "-o", "json").json["max_running"] is None


async def test_worker_without_heartbeat_is_listed_as_dead(shell: Shell, url: str) -> None:
    shell.start_service("worker", "--name", "w1").wait_for_line("worker started")
    assert "● alive" in shell("worker", "list").out
    shell.services[0].process.kill()
    connection = await asyncpg.connect(url)
    await connection.execute("UPDATE tenuto.workers SET seen_at = now() - interval '31 s'")
    await connection.close()
    assert "✕ dead" in shell("worker", "list").out
    (worker,) = shell("worker", "list", "-o", "json").json
    assert (worker["name"], worker["state"]) == ("w1", "dead")
    assert worker["silent_seconds"] > 30


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code", "remedy"),
    [
        (["tsk"], 2, "cli.usage.invalid", "tenuto --help"),
        (["task", "show"], 2, "cli.usage.invalid", "tenuto task show --help"),
        (["task", "list", "--state", "gone"], 2, "cli.usage.invalid", "tenuto task list --help"),
        (["task", "list", "--limit", "0"], 2, "cli.usage.invalid", "tenuto task list --help"),
        (["task", "list", "--below", "x"], 2, "cli.below.invalid", "id"),
        (["task", "show", "not-an-id"], 2, "id.not_valid", "from a list"),
        (["task", "show", "00"], 3, "id.prefix.not_found", "tenuto task list"),
        (["task", "cancel", "00"], 3, "id.prefix.not_found", "tenuto task list"),
        (["activity", "show", "00"], 3, "id.prefix.not_found", "activity list"),
        (["queue", "limit", "mail", "0"], 2, "queue.max_running.out_of_range", "pause"),
        (["queue", "limit", "mail", "many"], 2, "cli.option.not_a_whole_number", "tenuto queue limit mail 5"),
        (["queue", "pause", "a b"], 2, "value.name.invalid", "letters, digits"),
        (["run", "nothing"], 3, "job.unknown", "tenuto job list"),
        (["run", "double"], 2, "job.input.invalid", "tenuto job list"),
        (["run", "double", "--input", "{"], 2, "job.input.invalid", "tenuto job list"),
        (["run", "double", "--input", "@none.json"], 2, "cli.file.not_readable", "text file"),
        (["task", "list", "--database", "nonsense://x"], 8, "database.driver_error", "TENUTO_DATABASE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_error_has_a_code_and_a_remedy(
    shell: Shell, arguments: list[str], exit_code: int, code: str, remedy: str
) -> None:
    ended = shell(*arguments, "-o", "json")
    assert (ended.code, ended.out, ended.error["code"]) == (exit_code, "", code)
    assert remedy in ended.error["remedy"]


@pytest.mark.parametrize(
    ("arguments", "text", "remedy"),
    [
        (["task", "list", "--limit", "0"], "'--limit'", "tenuto task list --help"),
        (["worker", "--slots", "0"], "'--slots'", "tenuto worker --help"),
        (["worker", "--queues", "a b"], "a b", "letters, digits"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_error_for_people_has_a_message_and_a_remedy(
    shell: Shell, arguments: list[str], text: str, remedy: str
) -> None:
    ended = shell(*arguments)
    assert (ended.code, ended.out) == (2, "")
    message, _, hint = ended.err.partition("\n  try: ")
    assert message.startswith("error: ")
    assert text in message
    assert remedy in hint


@pytest.mark.parametrize(
    ("app", "code", "text", "remedy"),
    [
        ("tasks", "cli.app.invalid_name", "'tasks'", "tasks:app"),
        (":app", "cli.app.invalid_name", "':app'", "tasks:app"),
        ("nowhere:app", "cli.app.module_not_found", "nowhere", "in the folder of the module"),
        ("tasks.nowhere:app", "cli.app.module_not_found", "tasks.nowhere", "in the folder of the module"),
        ("tasks:nothing", "cli.app.object_not_found", "'nothing'", "--app tasks:app"),
        ("tasks:not_an_app", "cli.app.not_an_app", "tasks:not_an_app is of type int", "--app tasks:app"),
        ("broken:app", "cli.app.import_failed", "ZeroDivisionError", "python -c 'import broken'"),
        ("lacking:app", "cli.app.import_failed", "No module named 'not_installed'", "python -c"),
        ("twice:app", "job.name.duplicate", "again", "another name"),
    ],
)
def test_app_that_cannot_be_loaded_is_explained(shell: Shell, app: str, code: str, text: str, remedy: str) -> None:
    (shell.folder / "broken.py").write_text("1 / 0\n")
    (shell.folder / "lacking.py").write_text("import not_installed\n")
    again = "@app.job(name='again')\ndef {0}(): ...\n"
    (shell.folder / "twice.py").write_text(
        "from tenuto import Tenuto\napp = Tenuto()\n" + again.format("a") + again.format("b")
    )
    ended = shell("job", "list", "--app", app, "-o", "json")
    assert (ended.code, ended.out) == (2, "")
    assert ended.error["code"] == code
    assert text in ended.error["message"]
    assert remedy in ended.error["remedy"]


def test_app_without_jobs_is_rejected_where_jobs_are_needed(shell: Shell) -> None:
    (shell.folder / "empty.py").write_text("from tenuto import Tenuto\napp = Tenuto()\n")
    ended = shell("job", "list", "--app", "empty:app")
    assert (ended.code, ended.out) == (2, "")
    assert "app empty:app has no jobs" in ended.err
    assert "@app.job" in ended.err.partition("\n  try: ")[2]


@pytest.mark.parametrize("arguments", ["job list", "run double"])
def test_command_that_needs_jobs_requires_an_app(shell: Shell, arguments: str) -> None:
    del shell.environment["TENUTO_APP"]
    ended = shell(*arguments.split())
    assert ended.code == 2
    assert "error: --app is required" in ended.err
    assert "--app tasks:app" in ended.err


def test_command_that_needs_no_jobs_works_without_an_app(shell: Shell) -> None:
    del shell.environment["TENUTO_APP"]
    for arguments in ("task list", "activity list", "worker list", "queue list", "doctor"):
        # The doctor warns about the server of the tests, which may lose data.
        assert shell(*arguments.split()).code == (5 if arguments == "doctor" else 0)


def test_command_line_options_override_settings_of_the_app(open_shell: Callable[..., Shell], url: str) -> None:
    shell = open_shell()
    (shell.folder / "fixed.py").write_text(
        "from tenuto import Tenuto\napp = Tenuto('postgresql://nowhere/none', home='/nonexistent')\n"
    )
    ended = shell("task", "list", "--app", "fixed:app", "--database", url, "--home", str(shell.folder), "-o", "json")
    assert (ended.code, ended.json) == (0, [])


def test_missing_database_ends_with_8(shell: Shell, url: str) -> None:
    ended = shell("task", "list", "--database", database_url(url, "nobody_made_it"))
    assert (ended.code, ended.out) == (8, "")
    assert "create the database, or correct TENUTO_DATABASE" in ended.err


def test_traceback_is_printed_only_on_request(shell: Shell) -> None:
    ended = shell("task", "show", "00", TENUTO_DEBUG="1")
    assert ended.code == 1
    assert "Traceback" in ended.err


def test_quiet_prints_only_the_result(shell: Shell) -> None:
    ended = shell("run", "double", "--input", '{"n": 1}', "--quiet")
    assert ended.err == ""
    assert str(UUID(ended.out.strip())) == ended.out.strip()


async def test_task_that_runs_alone_says_so_instead_of_showing_its_internal_key(shell: Shell, db: Database) -> None:
    task_id = await create_task(db, limit_key=LAST_CHANCE_KEY, limit_max=1)
    shown = await asyncio.to_thread(shell, "task", "show", str(task_id))
    assert "last attempt: it runs alone, because its worker died twice" in shown.out
    assert LAST_CHANCE_KEY not in shown.out
