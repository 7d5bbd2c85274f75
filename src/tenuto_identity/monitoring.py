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
from tenuto_identity.model.containers import is_selected
from tenuto_identity.runs.definition_snapshot import load_configuration
from tenuto_identity.store import monitoring, previews, runs, transaction_settings


def doctor_checks() -> list[DoctorCheck]:
    """Return the checks of ``tenuto doctor``."""
    return [
        DoctorCheck("identity_consistency", check_consistency),
        DoctorCheck("identity_holds", check_holds),
        DoctorCheck("identity_selection", check_selection),
        DoctorCheck("identity_previews", check_previews),
        DoctorCheck("identity_runs", check_runs),
    ]


async def check_consistency(examination: Examination) -> Finding:
    """Look for rows that contradict each other, beyond what the database itself excludes."""
    found = await monitoring.find_inconsistencies(await examination.services.open_database())
    return Finding.from_details(
        "identity_consistency",
        found,
        passed="connector space and metaverse are consistent",
        failed="connector space and metaverse contradict each other",
        severity=Severity.PROBLEM,
        meaning="Synchronisation may miss or repeat changes.",
        remedy="run a full import and a full sync of the systems named; report it if it comes back",
    )


async def check_holds(examination: Examination) -> Finding:
    """Name the systems that guards hold."""
    held = await monitoring.list_held(await examination.services.open_database())
    return Finding.from_details(
        "identity_holds",
        [f"{each.name}: {each.message}" for each in held],
        passed="no connected system is on hold",
        failed="connected systems are on hold",
        severity=Severity.WARNING,
        meaning="Their syncs and exports do not run until a user approves.",
        remedy="examine what is held, then approve it with `tenuto identity approve`",
    )


async def check_selection(examination: Examination) -> Finding:
    """Name objects whose type or container is no longer selected: they are frozen."""
    database = await examination.services.open_database()
    counts = await transaction_settings.read_with(database, monitoring.count_by_container)
    configuration = await transaction_settings.read_with(database, load_configuration)
    found: list[str] = []
    for each in counts:
        system = configuration.systems_by_number.get(each.system_number)
        if system is None:
            continue
        type_name = system.type_names.get(each.type_number, "")
        if type_name not in system.definition.types:
            found.append(f"{system.name}: {each.object_count:,} objects of the type {type_name}")
        elif not is_selected(each.container, system.definition.containers):
            found.append(f"{system.name}: {each.object_count:,} objects of the type {type_name} in {each.container}")
    return Finding.from_details(
        "identity_selection",
        found,
        passed="all objects are of selected types and containers",
        failed="objects are out of reach, because their type or container is no longer selected",
        severity=Severity.WARNING,
        meaning="They are neither read nor written, and do not count as deleted.",
        remedy="select the type or container again, or clear the system with `tenuto identity clear`",
    )


async def check_previews(examination: Examination) -> Finding:
    """Name scratch copies that no running preview uses."""
    database = await examination.services.open_database()
    found = await transaction_settings.read_with(database, previews.list_abandoned)
    return Finding.from_details(
        "identity_previews",
        found,
        passed="no scratch copy of a preview is left",
        failed="scratch copies of previews are left",
        severity=Severity.WARNING,
        meaning="They take space in the database.",
        remedy="housekeeping drops them within a minute while a worker or scheduler runs; its login must own them",
    )


async def check_runs(examination: Examination) -> Finding:
    """Name open runs whose task has ended."""
    database = await examination.services.open_database()
    found = await transaction_settings.read_with(database, runs.find_abandoned_runs)
    return Finding.from_details(
        "identity_runs",
        [f"{each.id}: {each.profile} of {each.system}, task {each.task_id}" for each in found],
        passed="every open run has an open task",
        failed="runs are open although their task has ended",
        severity=Severity.WARNING,
        meaning="No worker continues them. The next run, and housekeeping, end them as lost.",
        remedy="keep a worker or scheduler running: housekeeping ends them within a minute",
    )


def metric_sources() -> list[MetricSource]:
    """Return the metrics of the installation."""
    metrics = (
        Metric("tenuto_identity_objects", "gauge", "Connector space objects by system and state.", ("system", "state")),
        Metric("tenuto_identity_metaverse_objects", "gauge", "Metaverse objects by type.", ("type",)),
        Metric("tenuto_identity_pending_exports", "gauge", "Pending exports by system and state.", ("system", "state")),
        Metric("tenuto_identity_held_systems", "gauge", "Connected systems that guards hold."),
        Metric("tenuto_identity_watermark_age_seconds", "gauge", "Time since the last complete import.", ("system",)),
        Metric("tenuto_identity_pending_export_age_seconds", "gauge", "Age of the oldest pending export.", ("system",)),
        Metric(
            "tenuto_identity_runs",
            "gauge",
            "Runs of the last day by system, kind and state.",
            ("system", "kind", "state"),
        ),
        Metric(
            "tenuto_identity_items",
            "gauge",
            "Items of the runs of the last day by system and change or error.",
            ("system", "result", "value"),
        ),
        Metric(
            "tenuto_identity_seconds_per_1000_objects",
            "gauge",
            "Duration of the last run of each kind per 1,000 objects.",
            ("system", "kind"),
        ),
    )
    return [MetricSource(metrics, monitoring.load_metrics)]


async def load_runs_since(database: Database, since: datetime) -> Sequence[LoggedChange]:
    """Return runs that began or ended, for the topic ``identity.runs``."""
    return [
        LoggedChange(
            (each.id, each.state),
            each.at,
            {"run": str(each.id), "system": each.system, "profile": each.profile, "state": each.state},
            f"Run {each.profile} of {each.system} is {each.state}",
            f"/identity/runs/{each.id}",
        )
        for each in await monitoring.list_runs_since(database, since)
    ]
