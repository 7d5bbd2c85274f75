"""Checks of the doctor that need more than one statement: ledgers against triggers, unreadable definitions, exposed
secrets.

They examine the newest rows only and change nothing. An exposed secret is named; its value is never shown.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from tenuto import secret_encryption
from tenuto.diagnostics.statement_checks import REPORT
from tenuto.errors import TenutoError
from tenuto.jobs.redaction import MIN_LENGTH, Redactor
from tenuto.model.definitions.manifests import manifest_from_fields
from tenuto.model.definitions.schedules import OverlapPolicy, misfire_from_json, plan_from_json
from tenuto.model.doctor_findings import MAX_DETAILS, Finding, Severity, list_details
from tenuto.model.lost_commits import HistoryVerdict, judge_history
from tenuto.model.triggers import Trigger, trigger_from_json
from tenuto.postgres.database import Database
from tenuto.scheduling.firing import parse_queued_request
from tenuto.service import lost_commit_watch
from tenuto.service.quarantine import UNREADABLE_ROW_ERRORS
from tenuto.settings import Settings
from tenuto.store import database_history
from tenuto.store.access import secrets
from tenuto.store.reports import doctor as store
from tenuto.store.reports.doctor import EnabledManifest, EnabledSchedule, QueuedRequest, ScheduleLedger

_LOSS_REPORT_DAYS = 30
_CLOCK_TOLERANCE_SECONDS = 1.0
_MAX_SCHEDULES, _MAX_OCCURRENCES, _MAX_SECRETS = 500, 50, 200


async def check_history(database: Database, settings: Settings) -> Finding:
    """Check that the database has the commits that service processes saw acknowledged, here and on other machines."""
    details = [
        f"{loss.found_at:%Y-%m-%d %H:%M:%S} UTC: {loss.service} {loss.name} had seen mark {loss.seen_number} of"
        f" {loss.seen_at:%Y-%m-%d %H:%M:%S} UTC on timeline {loss.seen_timeline}, and found {loss.found_number} on"
        f" timeline {loss.found_timeline}"
        for loss in await database_history.list_losses(database, database.clock.now() - timedelta(_LOSS_REPORT_DAYS))
    ]
    for mark in await asyncio.to_thread(lost_commit_watch.read_all_marks, settings.home):
        found = await database_history.load_history(database, mark.process)
        if lost_commit_watch.is_other_database(mark.seen, found):
            continue
        verdict = judge_history(mark.seen, found)
        if verdict is HistoryVerdict.FORMER_PRIMARY:
            details.append(
                f"this server is a former primary: timeline {found.timeline}, but {mark.service} {mark.name} has used"
                f" timeline {mark.seen.timeline}"
            )
        elif verdict is HistoryVerdict.LOST_COMMITS:
            details.append(f"{mark.service} {mark.name} has seen mark {mark.seen.number}, but finds {found.number}")
    if details:
        return Finding(
            "commits_lost",
            "the database has lost committed data",
            Severity.PROBLEM,
            list_details(details),
            "Tasks and outcomes that were recorded after the last mark found are missing: a standby without them was"
            " promoted, or a backup was restored. Tasks that had ended may run again.",
            "compare with the callers; enqueue again what is missing. See docs/how-to/failover.md",
        )
    behind_seconds = await database_history.find_clock_setback_seconds(database)
    if behind_seconds > _CLOCK_TOLERANCE_SECONDS:
        return Finding(
            "commits_lost",
            "the clock of the database server was set back",
            Severity.WARNING,
            [f"it is {behind_seconds:.1f} s behind a mark of a service"],
            "Leases last longer by this time, and due times are late.",
            "synchronise the clocks of all database servers with NTP",
        )
    return Finding("commits_lost", "the database has all commits that services have seen", Severity.OK)


async def check_ledger(database: Database) -> Finding:
    """Check that every due instant since the last change of a schedule is in the occurrence ledger."""
    found = await store.load_ledgers(database, _MAX_SCHEDULES, _MAX_OCCURRENCES)
    passed = "every due instant is in the ledger"
    if found is None:
        return Finding.timed_out("occurrence_missing", passed)
    gaps = [gap for ledger in found for gap in _find_gaps(ledger)]
    if not gaps:
        return Finding("occurrence_missing", passed, Severity.OK, [f"{len(found)} schedules checked"] if found else [])
    return Finding(
        "occurrence_missing",
        "due instants are missing from the ledger",
        Severity.PROBLEM,
        list_details(gaps),
        "A due run was neither started nor skipped for a reason, or a row of the ledger was deleted.",
        f"run it with `tenuto schedule run NAME` if it is still needed; {REPORT}",
    )


def _find_gaps(ledger: ScheduleLedger) -> Iterator[str]:
    """Yield due instants of the trigger that the ledger lacks."""
    try:
        trigger = trigger_from_json(ledger.trigger)
        rows = [*ledger.occurrences[1:], (ledger.next_run_at, None)]
        for (due_at, until), (following, _) in zip(ledger.occurrences, rows, strict=True):
            expected = trigger.next_after(until or due_at, str(ledger.schedule_id))
            if expected is not None and following is not None and expected < following:
                yield f"{ledger.name}: no occurrence at {expected:%Y-%m-%d %H:%M:%S} UTC"
    except UNREADABLE_ROW_ERRORS:
        return  # reported by `check_next_runs`


async def check_next_runs(database: Database) -> Finding:
    """Check that enabled definitions and queued requests are readable, and that every next run is known."""
    name, passed = "next_run_unknown", "schedules, manifests and queued requests are readable, and next runs are known"
    found, queued = (
        await store.load_enabled_definitions(database, _MAX_SCHEDULES),
        await store.load_queued_requests(database, _MAX_SCHEDULES),
    )
    if found is None or queued is None:
        return Finding.timed_out(name, passed)
    now = database.clock.now()
    unreadable, lost = await asyncio.to_thread(_find_unplanned, found, now)
    unreadable += await asyncio.to_thread(_find_unreadable_requests, queued)
    if not unreadable and not lost:
        return Finding(name, passed, Severity.OK)
    return Finding(
        name,
        "schedules, manifests or queued requests are unreadable, or next runs are unknown",
        Severity.PROBLEM if lost else Severity.WARNING,
        list_details(lost + unreadable),
        "They do not run: services of this version skip rows they cannot read, and do not compute a next run again."
        " While a request is queued, its schedule does not run either.",
        "rows of a newer version need services of that version; rows changed by hand must be corrected by hand;"
        " a queued request that cannot start is dropped after some minutes and can be repeated;"
        " `tenuto schedule disable NAME` and `enable NAME` (or `tenuto manifest …`) compute the next run again",
    )


def _find_unplanned(found: Sequence[EnabledSchedule | EnabledManifest], now: datetime) -> tuple[list[str], list[str]]:
    """Describe unreadable definitions, and definitions without the next run that their trigger has."""
    unreadable, lost = list[str](), list[str]()
    for each in found:
        subject = f"{'manifest' if isinstance(each, EnabledManifest) else 'schedule'} {each.name}"
        try:
            following = _read_trigger(each).next_after(now, str(each.id))
        except UNREADABLE_ROW_ERRORS as error:
            unreadable.append(f"{subject} cannot be read by this version: {error}")
            continue
        if following is not None and each.planned and each.next_run_at is None:
            lost.append(f"{subject} should run at {following:%Y-%m-%d %H:%M:%S} UTC, but has no next run")
    return unreadable, lost


def _find_unreadable_requests(queued: Sequence[QueuedRequest]) -> list[str]:
    """Describe queued manual runs that this version cannot read."""
    unreadable = list[str]()
    for each in queued:
        try:
            parse_queued_request(json.loads(each.request))
        except UNREADABLE_ROW_ERRORS as error:
            at = f"{each.due_at:%Y-%m-%d %H:%M:%S} UTC"
            unreadable.append(f"a run of {each.name} queued at {at} cannot be read by this version: {error}")
    return unreadable


def _read_trigger(stored: EnabledSchedule | EnabledManifest) -> Trigger:
    """Read everything that a scheduler reads, and return the trigger."""
    if isinstance(stored, EnabledManifest):
        return manifest_from_fields(json.loads(stored.definition)).trigger
    plan_from_json(stored.plan)
    misfire_from_json(stored.misfire)
    OverlapPolicy(stored.overlap)
    return trigger_from_json(stored.trigger)


async def check_exposed_secrets(database: Database, settings: Settings, max_rows: int) -> Finding:
    """Check that no value of a secret appears in stored texts."""
    name, passed = "secret_exposed", "no secret is exposed"
    stored = await secrets.list_secrets(database, "", _MAX_SECRETS)
    if not stored:
        return Finding(name, passed, Severity.OK, ["no secrets are stored"])
    try:
        values = await _decrypt_values(database, settings, [secret.name for secret in stored])
    except TenutoError as error:
        unknown = "unknown whether a secret is exposed"
        return Finding(name, unknown, Severity.NOTE, [error.message], None, error.remedy)
    search = _SecretSearch(values)
    complete = await store.scan_texts(database, max_rows, search.scan)
    if not search.found:
        if not complete:
            return Finding.timed_out(name, passed)
        return Finding(name, passed, Severity.OK, [f"{len(values)} searched in {search.text_count} texts"])
    return Finding(
        name,
        "secrets are exposed",
        Severity.PROBLEM,
        list_details(search.found),
        "Everyone who can read these rows, or a backup, knows the secret.",
        "change the secret where it is used, then run `tenuto secret set NAME`; let the job that wrote it use"
        " app.secrets.reveal, which redacts the value",
    )


async def _decrypt_values(database: Database, settings: Settings, names: list[str]) -> dict[str, str]:
    keys = await asyncio.to_thread(secret_encryption.require_keys, settings)
    rows = [row for name in names if (row := await secrets.load_secret(database, name)) is not None]
    return {row.name: value for row in rows if len(value := keys.decrypt(row)) >= MIN_LENGTH}


class _SecretSearch:
    """Searches texts for the values of secrets."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values
        self._redactor = Redactor()
        for value in values.values():
            self._redactor.add(value)
        self.text_count = 0
        self.found: list[str] = []

    async def scan(self, texts: Sequence[tuple[str, str]]) -> None:
        await asyncio.to_thread(self._scan, texts)

    def _scan(self, texts: Sequence[tuple[str, str]]) -> None:
        self.text_count += len(texts)
        for place, text in texts:
            if len(self.found) > MAX_DETAILS or self._redactor.redact_text(text) == text:
                continue
            for name, value in self._values.items():  # rare, so identifying the secret may be slow
                single = Redactor()
                single.add(value)
                if single.redact_text(text) != text:
                    self.found.append(f"the value of {name!r} appears in {place}")
