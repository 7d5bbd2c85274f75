"""The step kind powershell (S6, B54, B56): tested with a program that records its input, and with an installed one."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tenuto.errors import Invalid
from tenuto.model.access.secrets import SecretRef
from tenuto.model.work.tasks import Outcome, OutcomeStatus
from tests.jobs.conftest import RunnerHarness
from tests.support.errors import raises_code
from tests.support.programs import HOSTILE_TEXTS, SECRET, ProgramHarness, task_fields

INSTALLED = shutil.which("pwsh") or shutil.which("powershell")
SCRIPT = "param($Name)\n# ’smart’ quotes, $(Get-Date), 日本語\n'; Stop-Computer #\n"


@pytest.fixture
def program_harness(harness: RunnerHarness, tmp_path: Path) -> ProgramHarness:
    """Create a harness with a recorder named pwsh in the program path."""
    program_harness = ProgramHarness(harness, tmp_path, program_path=str(tmp_path))
    program_harness.create_recorder("pwsh")
    return program_harness


def run(program_harness: ProgramHarness, **arguments: Any) -> Outcome:
    return program_harness.harness.run(
        program_harness.powershell, _fields=task_fields(program_harness.powershell), **arguments
    )


def error_message(outcome: Outcome) -> str:
    assert outcome.error is not None
    return str(json.loads(outcome.error)["message"])


def test_powershell_text_runs_from_a_private_file_with_exact_arguments(program_harness: ProgramHarness) -> None:
    outcome = run(program_harness, text=SCRIPT, args=HOSTILE_TEXTS, env={"TOKEN": SecretRef(secret="t")}, stdin="in")
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.error
    program, *flags, file = program_harness.load_arguments()[:5]
    assert program == str(program_harness.folder / "pwsh")
    assert flags == ["-NoProfile", "-NonInteractive", "-File"]
    assert file.endswith("/script.ps1")
    assert program_harness.load_arguments()[5:] == HOSTILE_TEXTS
    record = program_harness.load_record()
    assert (record["script"], record["mode"]) == (SCRIPT, "0o100600")
    assert record["env"]["TOKEN"] == SECRET
    assert record["env"]["POWERSHELL_TELEMETRY_OPTOUT"] == "1"
    assert bytes.fromhex(record["stdin"]) == b"in"
    assert not Path(file).parent.exists(), "the private folder is removed"


def test_powershell_script_runs_in_place_or_from_a_checked_copy(program_harness: ProgramHarness) -> None:
    script = program_harness.folder / "tidy up.ps1"
    script.write_text(SCRIPT, encoding="utf-8")
    assert run(program_harness, script=str(script), args=["-Name", "x"]).status is OutcomeStatus.COMPLETED
    assert program_harness.load_arguments()[4:] == [str(script), "-Name", "x"]
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    assert run(program_harness, script=str(script), sha256=digest.upper()).status is OutcomeStatus.COMPLETED
    assert program_harness.load_arguments()[4] != str(script), "a private copy of the checked content"
    assert program_harness.load_record()["script"] == SCRIPT
    script.write_text("Stop-Computer", encoding="utf-8")
    swapped = run(program_harness, script=str(script), sha256=digest)
    assert (swapped.status, swapped.may_retry) == (OutcomeStatus.FAILED, False)
    assert "differs from the expected one" in error_message(swapped)


def test_missing_powershell_or_script_fails_permanently(
    harness: RunnerHarness, program_harness: ProgramHarness, tmp_path: Path
) -> None:
    missing = run(program_harness, script="/no/such.ps1")
    assert "cannot be read" in error_message(missing)
    listed = ProgramHarness(harness, tmp_path, program_path=str(tmp_path), programs=str(tmp_path / "pwsh"))
    (tmp_path / "other.ps1").write_text("1")
    assert "is not one of the programs that may run here" in error_message(
        run(listed, script=str(tmp_path / "other.ps1"))
    )
    assert run(listed, text="1").status is OutcomeStatus.COMPLETED
    (tmp_path / "empty").mkdir()
    without = run(ProgramHarness(harness, tmp_path, program_path=str(tmp_path / "empty")), text="exit 0")
    assert (without.status, without.may_retry) == (OutcomeStatus.FAILED, False)
    assert "there is no PowerShell (pwsh, powershell, powershell.exe)" in error_message(without)
    assert "install PowerShell on this machine" in error_message(without)


@pytest.mark.parametrize(
    ("arguments", "field", "code"),
    [
        ({}, "script", "step.powershell.script.not_exactly_one"),
        ({"script": "/x.ps1", "text": "1"}, "script", "step.powershell.script.not_exactly_one"),
        ({"script": "x.ps1"}, "script", "step.program.path_invalid"),
        ({"script": "/x.sh"}, "script", "step.powershell.script.not_ps1"),
        ({"script": "/x\0.ps1"}, "script", "step.program.nul_character"),
        ({"text": ""}, "text", "job.input.invalid"),
        ({"text": "1", "args": [{"secret": "t"}]}, "args.0", "step.program.args.secret"),
        ({"text": "1", "env": {"PSModulePath": "/x"}}, "env.PSModulePath", "step.program.env.reserved"),
        ({"text": "1", "program": "../pwsh"}, "program", "step.program.path_invalid"),
        (
            {"text": "1", "success_codes": [0, 1], "warning_codes": [1]},
            "warning_codes",
            "step.program.exit_codes.ambiguous",
        ),
        ({"text": "1", "command": "Get-Date"}, "command", "job.input.invalid"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_invalid_powershell_argument_is_rejected(
    program_harness: ProgramHarness, arguments: dict[str, Any], field: str, code: str
) -> None:
    with raises_code(code, Invalid) as caught:
        program_harness.powershell.validate_input(json.dumps(arguments))
    assert (caught.value.field or "").startswith(field)


@pytest.mark.skipif(INSTALLED is None, reason="PowerShell is not installed")
def test_installed_powershell_gets_exact_arguments_and_returns_its_exit_code(
    harness: RunnerHarness, tmp_path: Path
) -> None:
    program_harness = ProgramHarness(harness, tmp_path)
    arguments = ["; id", "$(Get-Date)", "’quoted’", "two words", "'; Stop-Computer #", "日本語"]
    outcome = run(
        program_harness,
        program=INSTALLED,
        text="$args | ForEach-Object { $_ }\nexit 3",
        args=arguments,
        warning_codes=[3],
    )
    assert outcome.status is OutcomeStatus.COMPLETED_WITH_WARNING, outcome.error
    assert json.loads(outcome.output or "")["stdout"].splitlines() == arguments
