"""Commands that need no code of the app work although the app that TENUTO_APP names cannot be imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

_WITHOUT_CODE = (
    "task list",
    "activity list",
    "queue list",
    "queue pause mail",
    "worker list",
    "key list",
    "key add deploy",
    "schedule list",
    "manifest list",
    "dead-letter list",
    "execution list",
    "batch list",
    "once list",
    "audit list",
    "audit verify",
    "secret list",
    "doctor",
    "migrate",
)


@pytest.mark.parametrize("command", _WITHOUT_CODE)
def test_command_that_needs_no_code_ignores_an_app_that_cannot_be_imported(shell: Shell, command: str) -> None:
    (shell.folder / "broken.py").write_text("raise RuntimeError('bad deploy')\n")
    ended = shell(*command.split(), TENUTO_APP="broken:app")
    assert ended.code == (5 if command == "doctor" else 0), ended.err  # the server of the tests runs without fsync


def test_command_that_needs_no_code_does_not_import_the_app(shell: Shell) -> None:
    (shell.folder / "slow.py").write_text("open('imported', 'w')\nfrom tenuto import Tenuto\napp = Tenuto()\n")
    assert shell("task", "list", TENUTO_APP="slow:app").code == 0
    assert not (shell.folder / "imported").exists()
    assert shell("task", "list", "--app", "slow:app").code == 0
    assert (shell.folder / "imported").exists(), "an app that the command line names is imported"


@pytest.mark.parametrize(
    "command",
    ["run double", "job list", "once add log.append --in 1h", "schedule add x --cron @daily --step log:a", "worker"],
)
def test_command_that_needs_the_app_says_so(shell: Shell, command: str) -> None:
    ended = shell(*command.split(), TENUTO_APP="nowhere:app")
    assert ended.code == 2
    assert "needs the app nowhere:app: there is no module named nowhere" in ended.err


def test_doctor_reports_that_it_continues_without_the_app(shell: Shell) -> None:
    ended = shell("doctor", TENUTO_APP="nowhere:app")
    assert ended.code == 5
    assert "continuing without the app nowhere:app: there is no module named nowhere" in ended.err


def test_app_that_names_the_database_in_code_is_imported(open_shell: Callable[..., Shell], url: str) -> None:
    shell = open_shell(TENUTO_APP="named:app")
    (shell.folder / "named.py").write_text(f"from tenuto import Tenuto\napp = Tenuto({url!r})\n")
    ended = shell("task", "list", "-o", "json")
    assert (ended.code, ended.json) == (0, [])


def test_missing_app_never_leads_to_a_new_embedded_database(open_shell: Callable[..., Shell], tmp_path: Path) -> None:
    shell = open_shell(TENUTO_APP="nowhere:app", TENUTO_HOME=str(tmp_path / "none"))
    ended = shell("task", "list")
    assert ended.code == 2
    assert "no other setting names the database" in ended.err
    assert "TENUTO_DATABASE" in ended.err
    assert not (tmp_path / "none").exists()


def test_embedded_database_is_used_without_the_app(open_shell: Callable[..., Shell], embedded_home: Path) -> None:
    shell = open_shell(TENUTO_HOME=str(embedded_home))
    assert shell("queue", "pause", "mail").code == 0
    ended = shell("queue", "list", TENUTO_APP="nowhere:app")
    assert ended.code == 0, ended.err
    assert "mail" in ended.out
    assert "continuing without the app nowhere:app" in ended.err
