"""Checks of the doctor for everything that needs attention: one for each kind of `diagnostics.attention`."""

from __future__ import annotations

from functools import partial

from tenuto.diagnostics.attention import ATTENTION_KINDS, Attention, AttentionKind, find_attention
from tenuto.diagnostics.reasons import format_instant
from tenuto.extension import DoctorCheck, Examination
from tenuto.model.doctor_findings import Finding
from tenuto.postgres.database import Database, LockTimeout, StatementTimeout
from tenuto.store.reports.overview import load_attention_facts


def attention_checks() -> list[DoctorCheck]:
    """Return the checks in the order of the report. They read their facts once per database."""
    checks = _AttentionChecks()
    return [DoctorCheck(kind.code, partial(checks.run, kind)) for kind in ATTENTION_KINDS]


class _AttentionChecks:
    def __init__(self) -> None:
        self._database: Database | None = None
        self._found: list[Attention] | None = None

    async def run(self, kind: AttentionKind, examination: Examination) -> Finding:
        if self._database is not examination.database:
            self._found = await _load_attention(examination.database)
            self._database = examination.database
        if self._found is None:
            return Finding.timed_out(kind.code, kind.passed)
        found = [each for each in self._found if each.code is kind.code]
        return Finding.from_details(
            kind.code,
            list(map(_describe, found)),
            passed=kind.passed,
            failed=kind.failed,
            severity=kind.severity,
            meaning=kind.meaning,
            remedy=kind.remedy or (found[0].command if found else None),
        )


async def _load_attention(database: Database) -> list[Attention] | None:
    try:
        return find_attention(await load_attention_facts(database))
    except (StatementTimeout, LockTimeout):
        return None


def _describe(found: Attention) -> str:
    return found.text if found.since is None else f"{found.text} · {format_instant(found.since)}"
