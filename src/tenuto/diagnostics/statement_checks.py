"""Checks of the doctor that one statement each verifies.

Their texts are in ``statement_checks.toml``, their statements in ``store/reports/doctor.sql``.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tenuto.model.doctor_findings import Severity

REPORT = "this should be impossible: keep the rows, and report it with the output of `tenuto doctor -o json`"


@dataclass(frozen=True, slots=True)
class Check:
    """One rule that a single statement verifies; `statement_checks.toml` explains the fields."""

    name: str
    passed: str
    failed: str
    severity: Severity
    row: str
    meaning: str
    remedy: str
    limits: tuple[str, ...] = ()
    recheck: str | None = None


def _load_checks() -> tuple[Check, ...]:
    text = Path(__file__).with_name("statement_checks.toml").read_text(encoding="utf-8")
    return tuple(
        Check(
            name,
            **{
                **fields,
                "severity": Severity(fields["severity"]),
                "remedy": REPORT if fields["remedy"] == "report" else fields["remedy"],
                "limits": tuple(fields.get("limits", ())),
            },
        )
        for name, fields in tomllib.loads(text).items()
    )


CHECKS = _load_checks()
"""All checks, in the order of the report."""
