"""How often something is repeated that only chance brings to light: a few times in the suite, many by `scripts/proofs`.

What a guard must hold is shown by a test of its own, every time (see `tests.mutants`). Repetition looks for what nobody
has thought of.
"""

from __future__ import annotations

import os

THOROUGH = bool(os.environ.get("TENUTO_PROOFS"))


def times(in_the_suite: int, *, in_a_proof: int) -> int:
    """How often, in this run."""
    return in_a_proof if THOROUGH else in_the_suite
