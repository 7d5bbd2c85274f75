"""What people type: answers on stdout, talk on stderr, an exit code that means something, errors with a way out."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import asyncpg
import pytest

from tenuto import Tenuto
from tenuto.clock import steady
from tests.cli.conftest import Shell
from tests.conftest import address

# ---- lists


@pytest.mark.parametrize("words", ["task list", "activity list", "worker list", "queue list"])
def test_an_empty_list_is_an_empty_list(shell: Shell, words: str) -> None:
    ended = shell(*words.split(), "-o", "json")
    assert (ended.code, ended.json, ended.err) == (0, [], "")
    for_people = shell(*words.split())
    assert (for_people.code, for_people.out) == (0, "")
    assert for_people.err.startswith("no ")


def test_a_list_as_json_has_ids_as_text_and_instants_in_iso_8601(shell: Shell) -> None:
    task_id = shell("run", "double", "--input", '{"n": 2}', "-q").out.strip()
    (task,) = shell("task", "list", "-o", "json").json
    assert task["id"] == task_id == str(UUID(task_id))
    assert datetime.fromisoformat(task["created_at"]).tzinfo is not None
    assert (task["state"], task["name"]) == ("queued", "double")


def test_a_list_is_narrowed_and_paged(shell: Shell) -> None:
    ids = [shell("run", "double", "--input", f'{{"n": {n}}}', "-q").out.strip() for n in range(3)]
    shell("run", "last")
    newest = shell("task", "list", "--queue", "default", "--name", "double", "--limit", "2", "-o", "json").json
    assert [task["id"] for task in newest] == [ids[2], ids[1]]
    page = shell("task", "list", "--queue", "default", "--limit", "2", "--below", ids[1], "-o", "json").json
    assert [task["id"] for task in page] == [ids[0]]
    assert shell("task", "list", "--state", "running", "-o", "json").json == []
    assert shell("task", "list", "--tag", "none", "-o", "json").json == []
    assert f"--below {ids[1]}" in shell("task", "list", "--queue", "default", "--limit", "2").err


def test_a_table_in_a_pipe_is_not_cut(shell: Shell) -> None:
    task_id = shell("run", "last", "-q").out.strip()
    header, row = shell("task", "list", COLUMNS="40").out.splitlines()
    assert header.split()[:4] == ["id", "state", "name", "queue"]
    assert row.split()[:5] == [task_id, "◌", "queued", "last", "slow"]


def test_a_database_that_refuses_is_told_of_soon_unless_somebody_wants_to_wait(shell: Shell) -> None:
    nobody = "postgresql://127.0.0.1:1/none"
    began = steady()
    ended = shell("task", "list", "--database", nobody)
    assert steady() - began < 9, "programs wait for 10 s, people do not"
    assert ended.code == 8
    assert ended.err.startswith("error: the database cannot be reached: nothing answers at 127.0.0.1 port 1\n")
    began = steady()
    shell("task", "list", "--database", nobody, TENUTO_CONNECT_SECONDS="2.5")
    assert steady() - began >= 2.5


# ---- having work done


async def test_a_job_is_run_by_a_worker_and_its_result_is_printed(shell: Shell, app: Tenuto) -> None:
    shell.start("worker").until("worker ready")
    ended = await asyncio.to_thread(shell, "run", "double", "--input", '{"n": 21}', "--wait", "--timeout", "60")
    assert (ended.code, ended.out) == (0, "42\n")
    assert "✓ completed at attempt 1" in ended.err
    (record,) = await app.activities()
    assert (record["initiator_type"], record["name"]) == ("user", "double")


def test_input_comes_from_a_file_or_from_stdin(shell: Shell) -> None:
    (shell.folder / "input.json").write_text('{"n": 5}')
    assert shell("run", "double", "--input", "@input.json").code == 0
    assert shell("run", "double", "--input", "-", stdin='{"n": 6}').code == 0
    inputs = [shell("task", "show", task["id"], "-o", "json").json for task in shell("task", "list", "-o", "json").json]
    assert [shown["task"]["input"] for shown in inputs] == [{"n": 6}, {"n": 5}]


def test_waiting_for_work_that_fails_ends_with_1(shell: Shell) -> None:
    shell.start("worker").until("worker ready")
    ended = shell("run", "hopeless", "--wait", "--timeout", "60")
    assert (ended.code, ended.out) == (1, "")
    assert "✕ failed" in ended.err
    assert "tenuto task show" in ended.err


def test_waiting_without_a_worker_says_so_and_can_be_interrupted(shell: Shell) -> None:
    waiting = shell.start("run", "double", "--input", '{"n": 1}', "--wait")
    waiting.until("nobody serves queue default yet")
    waiting.until("task ")
    assert waiting.stop(signal.SIGINT) == 130


def test_waiting_has_an_end(shell: Shell) -> None:
    ended = shell("run", "double", "--input", '{"n": 1}', "--wait", "--timeout", "0.1")
    assert ended.code == 7
    assert "has not ended after 0.1 s" in ended.err
    assert "tenuto task why" in ended.err.partition("  try: ")[2]


def test_the_jobs_of_an_app_are_listed_with_their_input(shell: Shell) -> None:
    assert "n: integer" in shell("job", "list").out
    jobs = {job["name"]: job for job in shell("job", "list", "-o", "json").json}
    assert set(jobs) == {"double", "third_time", "last", "hopeless"}
    assert jobs["double"]["input_schema"]["properties"]["n"]["type"] == "integer"
    assert jobs["last"]["queue"] == "slow"


# ---- one task


def test_a_task_is_shown_with_every_attempt(shell: Shell) -> None:
    shell.start("worker").until("worker ready")
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
    assert [attempt["status"] for attempt in document["attempts"]] == ["failed", "failed", "completed"]
    assert {attempt["worker"] for attempt in document["attempts"]} == {
        shell("worker", "list", "-o", "json").json[0]["name"]
    }


def test_a_later_attempt_leads_to_the_same_task(shell: Shell) -> None:
    shell.start("worker").until("worker ready")
    last = shell("run", "third_time", "--wait", "--timeout", "60", "-o", "json").json
    assert last["id"] != last["task_id"]
    assert shell("task", "show", last["id"], "-o", "json").json["id"] == last["task_id"]
    assert shell("activity", "show", last["id"], "-o", "json").json["attempt"] == 3
    assert "attempt 3" in shell("activity", "show", last["id"]).out


def test_the_beginning_of_an_id_is_enough_if_it_is_the_only_one(shell: Shell) -> None:
    first, second = (shell("run", "double", "--input", '{"n": 1}', "-q").out.strip() for _ in range(2))
    same = next(place for place in range(36) if first[place] != second[place])
    assert shell("task", "show", first[: same + 1], "-o", "json").json["id"] == first
    several = shell("task", "show", first[:same])
    assert several.code == 7
    assert "type more of it" in several.err


def test_a_task_nobody_runs_is_cancelled_at_once_and_it_is_known_by_whom(shell: Shell) -> None:
    task_id = shell("run", "double", "--input", '{"n": 1}', "-q").out.strip()
    ended = shell("task", "cancel", task_id, LOGNAME="ana")
    assert ended.code == 0
    assert f"task {task_id} is cancelled, by ana" in ended.err
    assert "cancelled by ana" in shell("task", "show", task_id).out
    again = shell("task", "cancel", task_id)
    assert again.code == 7
    assert "has ended already" in again.err


def test_a_running_task_is_told_to_stop(shell: Shell) -> None:
    worker = shell.start("worker", "--queues", "slow")
    worker.until("worker ready")
    task_id = shell("run", "last", "-q").out.strip()
    worker.until("under way")
    assert "● running" in shell("task", "show", task_id).out
    ended = shell("task", "cancel", task_id, "-o", "json", LOGNAME="ana")
    assert ended.json == {"id": task_id, "outcome": "stopping", "by": "ana"}
    worker.stop()
    assert shell("task", "show", task_id, "-o", "json").json["attempts"][-1]["status"] == "cancelled"


def test_control_characters_of_others_do_not_reach_the_terminal(shell: Shell) -> None:
    shell.start("worker").until("worker ready")
    task_id = shell("run", "hopeless", "--wait", "--timeout", "60", "-o", "json").json["id"]
    for words in (("task", "show", task_id, "--log"), ("activity", "list"), ("activity", "show", task_id)):
        shown = shell(*words).out
        assert "this cannot be" in shown
        assert not {character for character in shown if ord(character) < 32 or 127 <= ord(character) < 160} - {"\n"}
    as_json = shell("activity", "show", task_id, "-o", "json")
    assert "\x9b" not in as_json.out
    assert as_json.json["error"]["message"] == "this \x1b[31mcannot\x1b[0m be \x9bdone"


# ---- queues and workers


def test_a_queue_is_limited_paused_and_resumed(shell: Shell) -> None:
    assert shell("queue", "limit", "mail", "5").code == 0
    ended = shell("queue", "pause", "mail", "--reason", "server is down", LOGNAME="ana")
    assert "queue mail is paused, by ana" in ended.err
    (mail,) = shell("queue", "list", "-o", "json").json
    assert (mail["max_running"], mail["paused_by"], mail["reason"]) == (5, "ana", "server is down")
    assert "by ana: server is down" in shell("queue", "list").out
    assert shell("queue", "resume", "mail", "-o", "json").json["paused_at"] is None
    assert shell("queue", "limit", "mail", "none", "-o", "json").json["max_running"] is None


async def test_a_worker_that_is_not_heard_of_is_listed_as_stale(shell: Shell, url: str) -> None:
    shell.start("worker", "--name", "w1").until("worker ready")
    assert "● alive" in shell("worker", "list").out
    shell.services[0].process.kill()
    connection = await asyncpg.connect(url)
    await connection.execute("UPDATE tenuto.workers SET seen_at = now() - interval '61 s'")
    await connection.close()
    assert "✕ stale" in shell("worker", "list").out
    (worker,) = shell("worker", "list", "-o", "json").json
    assert (worker["name"], worker["state"]) == ("w1", "stale")
    assert worker["silent_for"] > 60


# ---- errors


@pytest.mark.parametrize(
    ("words", "code", "what", "remedy"),
    [
        (["tsk"], 2, "no such command 'tsk'", "tenuto --help"),
        (["task", "show"], 2, "missing argument 'ID'", "tenuto task show --help"),
        (["task", "list", "--state", "gone"], 2, "'gone' is not one of", "tenuto task list --help"),
        (["task", "list", "--limit", "0"], 2, "'--limit'", "tenuto task list --help"),
        (["task", "list", "--below", "x"], 2, "--below: is not a whole id", "copy the last id"),
        (["task", "show", "not-an-id"], 2, "is not an id", "copy it from a list"),
        (["task", "show", "00"], 3, "no id begins with 00", "tenuto task list"),
        (["task", "cancel", "00"], 3, "no id begins with 00", "tenuto task list"),
        (["activity", "show", "00"], 3, "no id begins with 00", "activity list"),
        (["queue", "limit", "mail", "0"], 2, "must be from 1 to 100,000", "pause the queue"),
        (["queue", "limit", "mail", "many"], 2, "N: 'many' is not a whole number", "tenuto queue limit mail 5"),
        (["queue", "pause", "a b"], 2, "is not a name", "letters, digits"),
        (["run", "nothing"], 3, "no job named 'nothing'", "tenuto job list"),
        (["run", "double"], 2, "n: Field required", "tenuto job list"),
        (["run", "double", "--input", "{"], 2, "Invalid JSON", "tenuto job list"),
        (["run", "double", "--input", "@none.json"], 2, "none.json cannot be read", "name a text file"),
        (["worker", "--slots", "0"], 2, "'--slots'", "tenuto worker --help"),
        (["worker", "--queues", "a b"], 2, "a b", "letters, digits"),
        (["task", "list", "--database", "nonsense://x"], 8, "nonsense", "TENUTO_DATABASE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_error_says_what_is_wrong_and_what_to_try(
    shell: Shell, words: list[str], code: int, what: str, remedy: str
) -> None:
    ended = shell(*words)
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.startswith("error: ")
    assert what in ended.err
    assert remedy in ended.err.partition("\n  try: ")[2]


@pytest.mark.parametrize(
    ("app", "what", "remedy"),
    [
        ("tasks", "'tasks' does not name an object in a module", "tasks:app"),
        (":app", "does not name an object", "tasks:app"),
        ("nowhere:app", "there is no module named nowhere", "run this in the folder that holds it"),
        ("tasks.nowhere:app", "there is no module named tasks.nowhere", "run this in the folder that holds it"),
        ("tasks:nothing", "module tasks has no 'nothing'", "--app tasks:app"),
        ("tasks:not_an_app", "tasks:not_an_app is a int, not a Tenuto app", "--app tasks:app"),
        ("broken:app", "importing broken fails: ZeroDivisionError", "python -c 'import broken'"),
        ("lacking:app", "importing lacking fails: ModuleNotFoundError: No module named 'not_installed'", "python -c"),
        ("twice:app", "a job named again is registered already", "another name"),
    ],
)
def test_an_app_that_cannot_be_had_is_explained(shell: Shell, app: str, what: str, remedy: str) -> None:
    (shell.folder / "broken.py").write_text("1 / 0\n")
    (shell.folder / "lacking.py").write_text("import not_installed\n")
    again = "@app.job(name='again')\ndef {0}(): ...\n"
    (shell.folder / "twice.py").write_text(
        "from tenuto import Tenuto\napp = Tenuto()\n" + again.format("a") + again.format("b")
    )
    ended = shell("worker", "--app", app)
    assert (ended.code, ended.out) == (2, "")
    assert what in ended.err
    assert remedy in ended.err.partition("\n  try: ")[2]


def test_an_app_without_jobs_is_explained_where_jobs_are_needed(shell: Shell) -> None:
    (shell.folder / "empty.py").write_text("from tenuto import Tenuto\napp = Tenuto()\n")
    ended = shell("job", "list", "--app", "empty:app")
    assert (ended.code, ended.out) == (2, "")
    assert "empty:app has no jobs" in ended.err
    assert "@app.job" in ended.err.partition("\n  try: ")[2]


@pytest.mark.parametrize("words", ["job list", "run double"])
def test_what_needs_jobs_asks_for_an_app(shell: Shell, words: str) -> None:
    del shell.environment["TENUTO_APP"]
    ended = shell(*words.split())
    assert ended.code == 2
    assert "error: --app: is needed here" in ended.err
    assert "--app tasks:app" in ended.err


def test_what_needs_no_jobs_works_without_an_app(shell: Shell) -> None:
    del shell.environment["TENUTO_APP"]
    for words in ("task list", "activity list", "worker list", "queue list", "doctor"):
        assert shell(*words.split()).code == 0


def test_the_command_line_is_stronger_than_the_app(open_shell: Callable[..., Shell], url: str) -> None:
    shell = open_shell()
    (shell.folder / "fixed.py").write_text(
        "from tenuto import Tenuto\napp = Tenuto('postgresql://nowhere/none', home='/nonexistent')\n"
    )
    ended = shell("task", "list", "--app", "fixed:app", "--database", url, "--home", str(shell.folder), "-o", "json")
    assert (ended.code, ended.json) == (0, [])


def test_a_database_that_is_not_there_is_8(shell: Shell, url: str) -> None:
    ended = shell("task", "list", "--database", address(url, "nobody_made_it"))
    assert (ended.code, ended.out) == (8, "")
    assert "create the database, or correct TENUTO_DATABASE" in ended.err


def test_a_traceback_is_shown_only_on_request(shell: Shell) -> None:
    ended = shell("task", "show", "00", TENUTO_DEBUG="1")
    assert ended.code == 1
    assert "Traceback" in ended.err


def test_quiet_leaves_the_answer_alone(shell: Shell) -> None:
    ended = shell("run", "double", "--input", '{"n": 1}', "--quiet")
    assert ended.err == ""
    assert str(UUID(ended.out.strip())) == ended.out.strip()
