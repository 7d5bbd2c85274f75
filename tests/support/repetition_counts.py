"""Repetition counts and seeds of randomised tests: few repetitions in the suite, many in `scripts/proofs`.

Each guard has its own deterministic test (see `tests.guards`). Repetition searches for unknown problems.
"""

from __future__ import annotations

import os
import random

THOROUGH = bool(os.environ.get("TENUTO_PROOFS"))
SEED_VARIABLE = "TENUTO_TEST_SEED"
_SUITE_SEED = 4711


def times(in_the_suite: int, *, in_a_proof: int) -> int:
    """Return the number of repetitions in this run."""
    return in_a_proof if THOROUGH else in_the_suite


def seed() -> int:
    """Return the seed: constant in the suite, random in a proof, or TENUTO_TEST_SEED.

    It is printed, so that a failure can be reproduced.
    """
    given = os.environ.get(SEED_VARIABLE)
    chosen = int(given) if given else random.randrange(2**32) if THOROUGH else _SUITE_SEED
    print(f"{SEED_VARIABLE}={chosen}")
    return chosen
