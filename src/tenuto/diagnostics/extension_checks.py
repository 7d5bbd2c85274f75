"""Checks of the doctor for extensions: their own checks, and a finding for everything that failed in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tenuto.errors import TenutoError
from tenuto.extension import DoctorCheck, Extension
from tenuto.extension_registry import Contribution, ExtensionFailure, ExtensionRegistry
from tenuto.model.findings import Finding, Severity

CHECK_TIMEOUT_SECONDS = 30.0


async def examine_extensions(registry: ExtensionRegistry) -> AsyncIterator[Finding]:
    """Yield the findings of the extensions' checks, then those about the extensions themselves."""
    for contribution in registry.collect("doctor checks", lambda extension: extension.doctor_checks()):
        yield await _run_check(registry, contribution)
    registry.try_all_parts()
    for failure in registry.failures:
        yield _describe_failure(failure)
    if not registry.failures:
        yield Finding("extensions", "all extensions work", Severity.OK, [each.name for each in registry.extensions])


async def _run_check(registry: ExtensionRegistry, contribution: Contribution[DoctorCheck]) -> Finding:
    check, extension = contribution.value, contribution.extension
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
            return await check.run(registry.create_services(extension))
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
