"""How often something is repeated that only chance brings to light: a few times in the suite, many by `scripts/proofs`.

What a guard must hold is shown by a test of its own, every time (see `tests.mutants`). Repetition looks for what nobody
has thought of.
"""

from __future__ import annotations

import os
import random

THOROUGH = bool(os.environ.get("TENUTO_PROOFS"))
SEED = "TENUTO_TEST_SEED"
_ALWAYS = 4711


def times(in_the_suite: int, *, in_a_proof: int) -> int:
    """How often, in this run."""
    return in_a_proof if THOROUGH else in_the_suite


def seed() -> int:
    """Where chance begins: always at the same place in the suite, anywhere in a proof, or as TENUTO_TEST_SEED says.

    It is printed, so that a failure tells how it came about.
    """
    given = os.environ.get(SEED)
    chosen = int(given) if given else random.randrange(2**32) if THOROUGH else _ALWAYS
    print(f"{SEED}={chosen}")
    return chosen
