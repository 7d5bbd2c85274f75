"""Doctor checks, metrics and events of identity synchronisation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tenuto.extension import (
    DoctorCheck,
    Examination,
    Finding,
    LoggedChange,
    Metric,
    MetricSource,
    Severity,
)
from tenuto.postgres.database import Database
from tenuto_identity.store import monitoring

MAX_DETAILS = 20


def doctor_checks() -> list[DoctorCheck]:
    """Return the checks of ``tenuto doctor``."""
    return [
        DoctorCheck("identity_consistency", check_consistency),
        DoctorCheck("identity_holds", check_holds),
    ]


async def check_consistency(examination: Examination) -> Finding:
    """Look for rows that contradict each other, beyond what the database itself excludes."""
    found = await monitoring.find_inconsistencies(await examination.services.open_database())
    if not found:
        return Finding("identity_consistency", "connector space and metaverse are consistent", Severity.OK)
    return Finding(
        "identity_consistency",
        "connector space and metaverse contradict each other",
        Severity.PROBLEM,
        found[:MAX_DETAILS],
        "Synchronisation may miss or repeat changes.",
        "run a full import and a full sync of the systems named; report it if it comes back",
    )


async def check_holds(examination: Examination) -> Finding:
    """Name the systems that guards hold."""
    held = await monitoring.list_held(await examination.services.open_database())
    if not held:
        return Finding("identity_holds", "no connected system is on hold", Severity.OK)
    return Finding(
        "identity_holds",
        "connected systems are on hold",
        Severity.WARNING,
        [f"{each.name}: {each.message}" for each in held],
        "Their syncs and exports do not run until a user approves.",
        "examine what is held, then approve it with `tenuto identity approve`",
    )


def metric_sources() -> list[MetricSource]:
    """Return the metrics of the installation."""
    metrics = (
        Metric("tenuto_identity_objects", "gauge", "Connector space objects by system and state.", ("system", "state")),
        Metric("tenuto_identity_metaverse_objects", "gauge", "Metaverse objects by type.", ("type",)),
        Metric("tenuto_identity_pending_exports", "gauge", "Pending exports by system and state.", ("system", "state")),
        Metric("tenuto_identity_held_systems", "gauge", "Connected systems that guards hold."),
        Metric("tenuto_identity_watermark_age_seconds", "gauge", "Time since the last complete import.", ("system",)),
    )
    return [MetricSource(metrics, monitoring.load_metrics)]


async def load_runs_since(database: Database, since: datetime) -> Sequence[LoggedChange]:
    """Return runs that began or ended, for the topic ``identity.runs``."""
    return [
        LoggedChange(
            (each.id, each.state),
            each.at,
            {"run": str(each.id), "system": each.system, "profile": each.profile, "state": each.state},
        )
        for each in await monitoring.list_runs_since(database, since)
    ]
