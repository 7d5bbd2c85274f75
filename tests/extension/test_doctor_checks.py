"""Checks of the doctor that extensions contribute: order, prerequisites, conditions, and isolation of their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tenuto import Actor, Tenuto
from tenuto.diagnostics import doctor
from tenuto.diagnostics.core_checks import core_checks
from tenuto.extension import DoctorCheck, Examination, Extension, Finding, Severity
from tenuto.operations.built_in_extensions import BUILT_IN, DoctorExtension
from tenuto.postgres.database import Database

EVENT_CHECKS = ["events_not_received", "event_waits_overdue"]
"""The checks of the built-in extension of events."""


def check(name: str, severity: Severity = Severity.OK, *, is_prerequisite: bool = False) -> DoctorCheck:
    async def run(examination: Examination) -> Finding:
        assert await examination.database.fetch_value("SELECT 1") == 1
        return Finding(name, name, severity)

    return DoctorCheck(name, run, is_prerequisite)


class Stock(Extension):
    name = "stock"

    def __init__(self, *checks: DoctorCheck) -> None:
        self._checks = checks

    def doctor_checks(self) -> Sequence[DoctorCheck]:
        return self._checks


class Prices(Stock):
    name = "prices"


async def names_of_findings(url: str, home: Path, *extensions: Extension) -> list[str]:
    async with Tenuto(url, home=home, extensions=extensions) as app:
        return [finding.name for finding in await app.doctor()]


def test_core_checks_are_a_contribution_of_the_built_in_extension() -> None:
    contributed = {extension.name: [each.name for each in extension.doctor_checks()] for extension in BUILT_IN}
    assert contributed.pop("doctor") == [each.name for each in core_checks()]
    assert contributed.pop("events") == EVENT_CHECKS
    assert set(map(tuple, contributed.values())) == {()}


async def test_doctor_runs_its_own_checks_first_and_then_those_of_extensions(url: str, tmp_path: Path) -> None:
    names = await names_of_findings(url, tmp_path, Stock(check("b"), check("a")), Prices(check("c")))
    own = [each.name for each in core_checks() if each.name != "disk"]
    assert names == [*own, *EVENT_CHECKS, "b", "a", "c", "extensions"]


async def test_doctor_reports_the_number_of_the_checks_of_all_extensions(url: str, tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    async with Tenuto(url, home=tmp_path, extensions=[Stock(check("a"))]) as app:
        findings = await app.doctor(lambda _finding, number, total: reports.append((number, total)))
    assert reports == [(number, len(findings)) for number in range(1, len(findings) + 1)]


async def test_problem_of_a_prerequisite_omits_the_other_checks_of_its_extension(url: str, tmp_path: Path) -> None:
    broken = check("base", Severity.PROBLEM, is_prerequisite=True)
    stock = Stock(check("a"), broken, check("second_base", is_prerequisite=True))
    names = await names_of_findings(url, tmp_path, stock, Prices(check("c")))
    assert names[-4:] == ["base", "second_base", "c", "extensions"]
    assert "task_lost" in names


async def test_problem_of_a_core_prerequisite_omits_the_checks_of_all_extensions(
    url: str, database: Database, tmp_path: Path
) -> None:
    await database.write_all("INSERT INTO tenuto.migrations (number, name, checksum) VALUES (9999, 'later', '')")
    app = Tenuto(url, home=tmp_path, extensions=[Stock(check("a"))])
    findings = await app.doctor()
    assert [finding.name for finding in findings] == ["server", "server_disk", "clock", "schema"]
    assert findings[-1].severity is Severity.PROBLEM


async def test_check_that_does_not_apply_to_the_settings_is_not_run(url: str, tmp_path: Path) -> None:
    async def run(examination: Examination) -> Finding:
        return Finding("a", "a", Severity.OK)

    for is_behind_pooler in (True, False):
        extension = Stock(
            DoctorCheck("a", run, applies_to=lambda settings: settings.behind_pooler is is_behind_pooler)  # noqa: B023
        )
        assert ("a" in await names_of_findings(url, tmp_path, extension)) is not is_behind_pooler


async def test_doctor_reports_timed_out_check_as_warning(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(examination: Examination) -> Finding:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(doctor, "CHECK_TIMEOUT_SECONDS", 0.05)
    async with Tenuto(url, home=tmp_path, extensions=[Stock(DoctorCheck("slow", run))]) as app:
        found = {finding.name: finding for finding in await app.doctor()}
    assert (found["slow"].severity, found["slow"].title) == (
        Severity.WARNING,
        "the check slow of the extension stock failed",
    )
    assert found["extensions"].severity is Severity.OK


async def test_check_that_returns_no_finding_is_a_warning(url: str, tmp_path: Path) -> None:
    async def run(examination: Examination) -> Any:
        return None

    async with Tenuto(url, home=tmp_path, extensions=[Stock(DoctorCheck("empty", run))]) as app:
        found = {finding.name: finding for finding in await app.doctor()}
    assert (found["empty"].severity, found["empty"].details) == (
        Severity.WARNING,
        ["TypeError: expected Finding, not None"],
    )


async def test_error_of_a_core_check_ends_the_examination(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(examination: Examination) -> Finding:
        raise ConnectionError("the server is down")

    monkeypatch.setattr(DoctorExtension, "doctor_checks", lambda self: [DoctorCheck("server", run)])
    with pytest.raises(ConnectionError):
        await names_of_findings(url, tmp_path)


async def test_doctor_is_an_operation_of_its_extension(url: str, tmp_path: Path) -> None:
    async with Tenuto(url, home=tmp_path) as app:
        findings = await app.acting_as(Actor.user("ana")).extensions.doctor.run_checks()
        assert [each.name for each in findings] == [each.name for each in await app.doctor()]
