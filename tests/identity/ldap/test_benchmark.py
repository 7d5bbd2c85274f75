"""The benchmark `ldap`, with a few entries: its parts still work, and its goals name its cases."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.contender import Contender
from benchmarks.goals import GOALS
from benchmarks.ldap_directory import LDAP, STAGES, ldap
from benchmarks.queue_benchmarks import Size
from tests.identity.ldap.slapd import Slapd
from tests.support.repetition_counts import THOROUGH

FACTOR = 50
"""How much smaller the counts are than those of a quick run."""


@dataclass(frozen=True)
class FewEntries(Size):
    """Counts small enough for a test."""

    def of(self, full: int, quick: int) -> int:
        return quick // FACTOR


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(not THOROUGH, reason="takes about a minute: scripts/proofs runs it")
async def test_ldap_benchmark_measures_every_stage_of_tenuto_and_of_the_script(server: str, slapd: Slapd) -> None:
    contenders = [Contender(name, module, Path(sys.executable), server) for name, module in LDAP.items()]
    found = {each.name: each for each in await ldap(contenders, FewEntries(1, quick=True))}
    for name in STAGES.values():
        (rate,) = (each for case, each in found.items() if case.startswith(f"{name}, "))
        assert set(rate.figures) == {"tenuto", "script"}, name
    named = {goal.case.replace("500 among", "2 among").split(" of ")[0] for goal in GOALS if goal.benchmark == "ldap"}
    assert not [name for name in named if not any(case.startswith(name) for case in found)]
