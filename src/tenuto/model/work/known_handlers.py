"""The jobs and step kinds that a process knows, each with an optional version. A worker claims only their tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class KnownHandlers:
    """Names of jobs and step kinds, with the version of each (None: not given)."""

    jobs: Mapping[str, str | None]
    kinds: Mapping[str, str | None]
    jobs_json: str = field(init=False)
    """Serialised once, because every claim sends it."""
    kinds_json: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "jobs_json", json.dumps(dict(self.jobs)))
        object.__setattr__(self, "kinds_json", json.dumps(dict(self.kinds)))


def claim_parameters(known: KnownHandlers | None) -> tuple[str | None, str | None]:
    """Return the parameters that restrict a claim to known jobs and step kinds; None claims all tasks."""
    return (None, None) if known is None else (known.jobs_json, known.kinds_json)
