"""`tenuto dev` restarts on changes and shows results; `tenuto run --inline` runs a job in the command itself."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from tenuto.cli.admin.source_watcher import SourceWatcher
from tenuto.cli.attempt_printer import render_traceback
from tests.cli.conftest import Service, Shell


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")


def start_dev(shell: Shell, *options: str) -> Service:
    service = shell.start_service("dev", "--app", "tasks:app", "--queues", "default,slow", "--no-web", *options)
    service.wait_for_line("worker started")
    return service


def test_dev_shows_results_and_restarts_on_changes_without_losing_work(shell: Shell) -> None:
    tasks = shell.folder / "tasks.py"
    service = start_dev(shell, "--reload")
    shell("run", "double", "--input", '{"n": 21}', "-q")
    assert "→ 42" in service.wait_for_line("✓ double")
    shell("run", "third_time", "-q")
    assert "attempt 1 of 3" in service.wait_for_line("✕ third_time")
    service.wait_for_line("ValueError: not yet")
    service.wait_for_line('→ "done"')
    assert not any("attempt failed" in line for line in service.lines), "the log does not repeat it"

    slow = shell("run", "last", "-q").out.strip()
    service.wait_for_line("under way")
    edit(tasks, "return 2 * n", "return 3 * n")
    assert service.wait_for_line("changed; restarting").startswith("tasks.py")
    service.wait_for_line("back in the queue")
    service.wait_for_line("running again")
    shell("run", "double", "--input", '{"n": 21}', "-q")
    service.wait_for_line("→ 63")
    attempts = shell("task", "show", slow, "-o", "json").json["attempts"]
    assert [attempt["reason"] for attempt in attempts[:1]] == ["handed_back"]

    edit(tasks, "import time", "import time, no_such_module")
    assert "tasks.py:4" in service.wait_for_line("tasks.py:")  # the traceback
    service.wait_for_line("No module named 'no_such_module'")
    service.wait_for_line("waiting for a change")
    edit(tasks, "import time, no_such_module", "import time")
    service.wait_for_line("running again")
    assert service.stop(signal.SIGINT) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
@pytest.mark.parametrize("options", [("--reload",), ("--no-reload",)])
def test_services_of_dev_stop_when_it_is_killed(shell: Shell, options: tuple[str, ...]) -> None:
    service = start_dev(shell, *options)
    shell("run", "last", "-q")
    service.wait_for_line("under way")  # a shutdown hands the running task back
    (services,) = psutil.Process(service.process.pid).children()
    service.process.kill()
    assert psutil.wait_procs([services], timeout=30)[1] == []
    workers = shell("worker", "list", "-o", "json").json
    assert [each for each in workers if each["state"] == "live"] == []


def test_dev_without_reload_ends_with_its_services(shell: Shell) -> None:
    (shell.folder / "broken.py").write_text("raise ValueError('no app here')\n")
    refused = shell("dev", "--app", "broken:app", "--no-reload", "--no-web")
    assert refused.code == 2
    assert "no app here" in refused.err
    assert "waiting for a change" not in refused.err
    shell.environment.pop("TENUTO_APP")
    assert "--app is required" in shell("dev").err
    missing = shell("dev", "--app", "tasks:app", "--watch", "nowhere")
    assert (missing.code, "nowhere is not a folder" in missing.err) == (2, True)


def test_source_watcher_finds_changed_created_and_deleted_files(tmp_path: Path) -> None:
    package, data = tmp_path / "package", tmp_path / "home"
    for folder in (package, data, tmp_path / ".git", tmp_path / "venv", package / "__pycache__"):
        folder.mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    ignored = [data / "a.py", tmp_path / ".git" / "a.py", tmp_path / "venv" / "a.py", package / "__pycache__" / "a.py"]
    ignored.append(package / "notes.txt")
    changed, deleted = package / "changed.py", tmp_path / "schedules.yaml"
    for file in (changed, deleted, *ignored):
        file.write_text("1")
    watcher = SourceWatcher([tmp_path], [data])
    assert watcher.file_count == 2
    assert watcher.find_changes() == []
    for file in (changed, *ignored):
        file.write_text("22")
    deleted.unlink()
    created = package / "created.sql"
    created.write_text("SELECT 1")
    assert watcher.find_changes() == sorted([changed, created, deleted])
    os.utime(changed, ns=(1, 1))
    assert watcher.find_changes() == [changed]
    assert watcher.find_changes() == []


def test_traceback_shows_own_code_with_its_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "mine.py"
    source.write_text("def f():\n    x = 1\n    raise KeyError(x)\n\n\ndef g():\n    f()\n")
    changed = tmp_path / "changed.py"
    changed.write_text("other code\n")
    stack = (
        "Traceback (most recent call last):\n"
        f'  File "{source}", line 7, in g\n    f()\n'
        '  File "/usr/lib/python3/site-packages/lib/deep.py", line 9, in call\n    return f()\n           ^^^\n'
        f'  File "{changed}", line 1, in h\n    gone()\n'
        f'  File "{source}", line 3, in f\n    raise KeyError(x)\n'
        "KeyError: 1 \x1b[31m\n"
    )
    console = Console(width=80, color_system=None, record=True)
    with console.capture() as capture:
        console.print(*render_traceback(stack), sep="\n")
    text = capture.get()
    assert "\x1b" not in text
    for expected in ("mine.py:7 in g", "lib/deep.py:9 in call", "changed.py:1 in h", "gone()", "2     x = 1", "❱ 3"):
        assert expected in text, text
    assert text.rstrip().splitlines()[-1].strip().startswith("KeyError: 1")
    long = "Traceback (most recent call last):\n" + '  File "/x.py", line 1, in f\n    f()\n' * 100 + "RecursionError\n"
    assert len(list(render_traceback(long))) < 80


def test_run_takes_the_rate_limit_of_its_task(shell: Shell) -> None:
    id = shell("run", "double", "--input", '{"n": 4}', "--rate-limit", "7/m", "--rate-key", "shop", "-q").out.strip()
    again = shell("run", "double", "--input", '{"n": 4}', "--rate-limit", "fast")
    assert again.code == 2
    assert "fast" in again.err
    assert shell("run", "double", "--inline", "--rate-limit", "7/m").code == 2
    assert "rate:shop" in shell("task", "show", id).out


def test_run_inline_prints_log_and_result_without_a_database(shell: Shell, tmp_path: Path) -> None:
    home = tmp_path / "unused"
    nowhere = {"TENUTO_DATABASE": "postgresql://nobody@localhost:1/none", "TENUTO_HOME": str(home)}
    done = shell("run", "double", "--input", '{"n": 4}', "--inline", **nowhere)
    assert (done.code, done.out) == (0, "8\n")
    assert "✓ completed" in done.err
    invalid = shell("run", "double", "--input", '{"n": "four"}', "--inline", **nowhere)
    assert (invalid.code, invalid.out) == (2, "")
    assert "n: Input should be a valid integer" in invalid.err
    failed = shell("run", "third_time", "--inline", **nowhere)
    assert (failed.code, failed.out) == (1, "this is attempt 1\n")
    assert "❱" in failed.err
    assert "ValueError: not yet" in failed.err
    record = shell("run", "third_time", "--inline", "-o", "json", **nowhere)
    assert record.code == 1
    assert '"type": "ValueError"' in record.out
    conflict = shell("run", "double", "--inline", "--wait", **nowhere)
    assert (conflict.code, "--inline creates no task" in conflict.err) == (2, True)
    assert not home.exists()
    without_setting = shell(
        "run", "double", "--input", '{"n": 4}', "--inline", TENUTO_DATABASE="", TENUTO_HOME=str(home)
    )
    assert "creating an embedded PostgreSQL" not in without_setting.err
