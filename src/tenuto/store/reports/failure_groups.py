"""What is known of kinds of failures: affected manifests, frequency by hour, and the last resolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from tenuto.model.dead_letters import DeadLetterState
from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import load_statements
from tenuto.store.dead_letters import FailureGroup
from tenuto.store.records import RowMapper

SQL = load_statements(__file__)

TREND_HOURS = 24


@dataclass(frozen=True, slots=True)
class FailureResolution:
    """How a dead letter was resolved."""

    fingerprint: str
    id: UUID
    state: DeadLetterState
    resolved_at: datetime
    resolved_by: str
    note: str | None


@dataclass(frozen=True, slots=True)
class FailureGroupDetails(FailureGroup):
    """Open dead letters of the same kind of failure, with its history."""

    manifests: Sequence[str]
    """External ids of the affected manifests."""
    hourly_counts: Sequence[int]
    """Dead letters of this kind in each of the last 24 hours, oldest first; resolved ones are counted too."""
    last_resolution: FailureResolution | None
    """How the last resolved dead letter of this kind was resolved."""


_RESOLUTIONS = RowMapper(FailureResolution, SQL.list_last_resolutions)


async def add_histories(database: Database, groups: Sequence[FailureGroup], now: datetime) -> list[FailureGroupDetails]:
    """Return groups of failures with manifests, frequency and last resolution."""
    fingerprints, since = [group.fingerprint for group in groups], now - timedelta(hours=TREND_HOURS)
    manifests = {
        row["fingerprint"]: row["manifests"]
        for row in await database.fetch_all(SQL.list_manifests_of_failures, fingerprints)
    }
    counts = {fingerprint: [0] * TREND_HOURS for fingerprint in fingerprints}
    for row in await database.fetch_all(SQL.count_failures_by_hour, fingerprints, since):
        counts[row["fingerprint"]][min(row["hour"], TREND_HOURS - 1)] += row["count"]
    found = _RESOLUTIONS.all(await database.fetch_all(SQL.list_last_resolutions, fingerprints))
    resolutions = {resolution.fingerprint: resolution for resolution in found}
    return [
        FailureGroupDetails(
            group.fingerprint,
            group.dead_letter_count,
            group.manifest_count,
            group.external_id,
            group.job_count,
            group.name,
            group.first_at,
            group.last_at,
            group.reason,
            manifests.get(group.fingerprint, []),
            counts[group.fingerprint],
            resolutions.get(group.fingerprint),
        )
        for group in groups
    ]
