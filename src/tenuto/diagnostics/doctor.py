"""The doctor: runs the checks of all extensions, those of Tenuto first, and returns the findings. It changes nothing.

The checks of Tenuto itself are in `core_checks`. A check of another extension cannot stop the doctor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tenuto.errors import TenutoError
from tenuto.extension import (
    Contribution,
    DoctorCheck,
    Examination,
    Extension,
    ExtensionFailure,
    ExtensionSet,
    Finding,
    Severity,
)
from tenuto.postgres.database import Database

CHECK_TIMEOUT_SECONDS = 30.0

ReportProgress = Callable[[Finding, int, int], None]
"""Receives each finding, its number and the total."""


async def run_checks(
    database: Database,
    extensions: ExtensionSet,
    report: ReportProgress = lambda finding, number, total: None,
) -> list[Finding]:
    """Run all checks, then check the extensions themselves.

    If a check that others rely on finds a problem, the other checks of its extension are omitted. If it is a check of
    Tenuto itself, those of all extensions are.
    """
    checks = _applicable_checks(extensions)
    failed: set[Extension] = set()
    findings: list[Finding] = []

    def add(finding: Finding) -> None:
        findings.append(finding)
        report(finding, len(findings), max(len(checks) + 1, len(findings)))

    for contribution in checks:
        extension, check = contribution.extension, contribution.value
        if not check.is_prerequisite and _is_omitted(extension, failed, extensions):
            continue
        finding = await _run_check(database, extensions, contribution)
        add(finding)
        if check.is_prerequisite and finding.severity is Severity.PROBLEM:
            failed.add(extension)
    if any(extensions.is_built_in(extension) for extension in failed):
        return findings
    extensions.try_all_parts()
    for failure in extensions.failures:
        add(_describe_failure(failure))
    if not extensions.failures:
        add(Finding("extensions", "all extensions work", Severity.OK, [each.name for each in extensions.extensions]))
    return findings


def _applicable_checks(extensions: ExtensionSet) -> list[Contribution[DoctorCheck]]:
    """Return the checks that apply to the settings; of each extension, those that others rely on are first."""

    def contribute(extension: Extension) -> list[DoctorCheck]:
        checks = extension.doctor_checks()
        if any(check.applies_to is not None for check in checks):
            settings = extensions.create_services(extension).get_settings()
            checks = [check for check in checks if check.applies_to is None or check.applies_to(settings)]
        return sorted(checks, key=lambda check: not check.is_prerequisite)

    return extensions.collect("doctor checks", contribute)


def _is_omitted(extension: Extension, failed: set[Extension], extensions: ExtensionSet) -> bool:
    return extension in failed or any(extensions.is_built_in(each) for each in failed)


async def _run_check(database: Database, extensions: ExtensionSet, contribution: Contribution[DoctorCheck]) -> Finding:
    check, extension = contribution.value, contribution.extension
    if extensions.is_built_in(extension):  # an error means that the database is not available: no check can succeed
        return await check.run(Examination(database, extensions.create_services(extension)))
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
            finding: object = await check.run(Examination(database, extensions.create_services(extension)))
        if not isinstance(finding, Finding):
            raise TypeError(f"expected Finding, not {finding!r:.80}")
        return finding
    except Exception as error:  # noqa: BLE001 — code of an extension: the other checks must run
        return _failed_check(extension, check, error)


def _failed_check(extension: Extension, check: DoctorCheck, error: Exception) -> Finding:
    reason = str(error) if isinstance(error, TenutoError) else f"{type(error).__name__}: {error}"
    return Finding(
        check.name,
        f"the check {check.name} of the extension {extension.name} failed",
        Severity.WARNING,
        [reason],
        "It is unknown whether this part of the extension works.",
        (error.remedy if isinstance(error, TenutoError) else None) or f"report it to the author of {extension.name}",
    )


def _describe_failure(failure: ExtensionFailure) -> Finding:
    is_loaded = failure.part != "loading"
    return Finding(
        f"extension {failure.extension}",
        f"{failure.part} of the extension {failure.extension} failed"
        if is_loaded
        else f"the extension {failure.extension} is not loaded",
        Severity.WARNING,
        [failure.problem],
        "This part of the extension is not available." if is_loaded else "Nothing of the extension is available.",
        failure.remedy,
    )
