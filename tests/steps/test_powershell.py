"""PowerShell scripts as steps (S6, B54, B56): proven with a stand-in that writes down what it was given, and with
the real one where there is one."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tenuto.errors import Invalid
from tenuto.model.secrets import SecretRef
from tenuto.model.tasks import Outcome, Status
from tests.jobs.conftest import Bench
from tests.support.programs import NASTY, SECRET, Workshop, fields

REAL = shutil.which("pwsh") or shutil.which("powershell")
SCRIPT = "param($Name)\n# ’smart’ quotes, $(Get-Date), 日本語\n'; Stop-Computer #\n"


@pytest.fixture
def shop(bench: Bench, tmp_path: Path) -> Workshop:
    """With a stand-in for PowerShell, found by its name."""
    shop = Workshop(bench, tmp_path, program_path=str(tmp_path))
    shop.recorder("pwsh")
    return shop


def run(shop: Workshop, **arguments: Any) -> Outcome:
    return shop.bench.run(shop.powershell, _fields=fields(shop.powershell), **arguments)


def message(outcome: Outcome) -> str:
    assert outcome.error is not None
    return str(json.loads(outcome.error)["message"])


def test_the_text_of_a_script_is_run_from_a_file_of_its_own_with_every_argument_as_it_is(shop: Workshop) -> None:
    outcome = run(shop, text=SCRIPT, args=NASTY, env={"TOKEN": SecretRef(secret="t")}, stdin="in")
    assert outcome.status is Status.COMPLETED, outcome.error
    program, *flags, file = shop.recorded_arguments()[:5]
    assert program == str(shop.folder / "pwsh")
    assert flags == ["-NoProfile", "-NonInteractive", "-File"]
    assert file.endswith("/script.ps1")
    assert shop.recorded_arguments()[5:] == NASTY
    record = shop.record()
    assert (record["script"], record["mode"]) == (SCRIPT, "0o100600")
    assert record["env"]["TOKEN"] == SECRET
    assert record["env"]["POWERSHELL_TELEMETRY_OPTOUT"] == "1"
    assert bytes.fromhex(record["stdin"]) == b"in"
    assert not Path(file).parent.exists(), "taken away"


def test_a_script_of_the_machine_is_run_where_it_stands_or_as_it_was_when_it_was_checked(shop: Workshop) -> None:
    script = shop.folder / "tidy up.ps1"
    script.write_text(SCRIPT, encoding="utf-8")
    assert run(shop, script=str(script), args=["-Name", "x"]).status is Status.COMPLETED
    assert shop.recorded_arguments()[4:] == [str(script), "-Name", "x"]
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    assert run(shop, script=str(script), sha256=digest.upper()).status is Status.COMPLETED
    assert shop.recorded_arguments()[4] != str(script), "a copy, that nobody can change between check and run"
    assert shop.record()["script"] == SCRIPT
    script.write_text("Stop-Computer", encoding="utf-8")
    swapped = run(shop, script=str(script), sha256=digest)
    assert (swapped.status, swapped.may_retry) == (Status.FAILED, False)
    assert "is not the file it was" in message(swapped)


def test_without_powershell_or_the_script_it_is_said_what_to_do(bench: Bench, shop: Workshop, tmp_path: Path) -> None:
    missing = run(shop, script="/no/such.ps1")
    assert "cannot be read" in message(missing)
    listed = Workshop(bench, tmp_path, program_path=str(tmp_path), programs=str(tmp_path / "pwsh"))
    (tmp_path / "other.ps1").write_text("1")
    assert "none of the programs that may be run here" in message(run(listed, script=str(tmp_path / "other.ps1")))
    assert run(listed, text="1").status is Status.COMPLETED
    (tmp_path / "empty").mkdir()
    without = run(Workshop(bench, tmp_path, program_path=str(tmp_path / "empty")), text="exit 0")
    assert (without.status, without.may_retry) == (Status.FAILED, False)
    assert "there is no PowerShell (pwsh, powershell, powershell.exe)" in message(without)
    assert "install PowerShell on this machine" in message(without)


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        ({}, "script", "is missing"),
        ({"script": "/x.ps1", "text": "1"}, "script", "is given beside text"),
        ({"script": "x.ps1"}, "script", "absolute path"),
        ({"script": "/x.sh"}, "script", ".ps1"),
        ({"script": "/x\0.ps1"}, "script", "NUL"),
        ({"text": ""}, "text", "at least 1"),
        ({"text": "1", "args": [{"secret": "t"}]}, "args.0", "pass it by env or stdin"),
        ({"text": "1", "env": {"PSModulePath": "/x"}}, "env.PSModulePath", "decides which code is run"),
        ({"text": "1", "program": "../pwsh"}, "program", "neither"),
        ({"text": "1", "success_codes": [0, 1], "warning_codes": [1]}, "warning_codes", "success code too"),
        ({"text": "1", "command": "Get-Date"}, "command", "Extra inputs"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_bad_argument_is_refused_before_it_is_stored(
    shop: Workshop, arguments: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(Invalid) as refusal:
        shop.powershell.check_input(json.dumps(arguments))
    assert (refusal.value.field or "").startswith(field)
    assert words in str(refusal.value)


@pytest.mark.skipif(REAL is None, reason="there is no PowerShell on this machine")
def test_the_real_one_takes_arguments_as_they_are_and_its_exit_code_counts(bench: Bench, tmp_path: Path) -> None:
    shop = Workshop(bench, tmp_path)
    arguments = ["; id", "$(Get-Date)", "’quoted’", "two words", "'; Stop-Computer #", "日本語"]
    outcome = run(shop, program=REAL, text="$args | ForEach-Object { $_ }\nexit 3", args=arguments, warning_codes=[3])
    assert outcome.status is Status.COMPLETED_WITH_WARNING, outcome.error
    assert json.loads(outcome.output or "")["stdout"].splitlines() == arguments
