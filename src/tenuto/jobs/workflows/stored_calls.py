"""What a run of a workflow has stored, by position.

The names of the stored rows: ``3 charge`` is a step at position 3, ``3.2.1 charge`` the first call in the second branch
of the gather at position 3, ``sleep in 4`` and ``wait in 5`` are a sleep and a wait at these positions, ``patch NAME in
BRANCH`` and ``version`` are decisions, ``failure of attempt 2 at 3 charge`` is a failure that counts in that attempt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic_core import from_json

from tenuto.jobs.context import SLEEP, WAIT
from tenuto.model.events.event_names import CHILD_EVENT

GATHER = "ctx.gather"
_STEP = re.compile(r"(\d+(?:\.\d+\.\d+)*) (.+)", re.DOTALL)
_PATH = re.compile(r"\d+(?:\.\d+\.\d+)*")
_KEPT_FAILURE = re.compile(r"failure of attempt (\d+) at (.+)", re.DOTALL)


class History:
    """The stored calls of a run."""

    def __init__(self, stored: Mapping[str, str], attempt: int) -> None:
        self.results: dict[str, str] = {}
        """Stored results and failures, by key."""
        self.patches: dict[str, bool] = {}
        self.kept_failures: set[str] = set()
        """Keys of failures that count in this attempt only."""
        self.version: str | None = None
        """The version of the workflow that the run has begun with."""
        self.stored_count = len(stored)
        self.character_count = sum(map(len, stored.values()))
        self._names: dict[str, str] = {}
        """Names of the calls, by path."""
        self._last_positions: dict[str, int] = {}
        """The last position with a stored call, by branch."""
        kept: dict[str, str] = {}
        for row, text in stored.items():
            if (step := _STEP.fullmatch(row)) is not None:
                self.results[row] = text
                self._add(step[1], step[2])
            elif (failure := _KEPT_FAILURE.fullmatch(row)) is not None:
                if int(failure[1]) == attempt:  # guard: workflows.kept_failure_of_attempt
                    kept[failure[2]] = text
            elif row.startswith("patch "):
                self.patches[row] = bool(from_json(text)["value"])
            elif row == "version":
                self.version = from_json(text)["value"]
            else:
                kind, _, path = row.partition(" in ")
                if kind in ("sleep", "wait") and _PATH.fullmatch(path):
                    self._add(path, SLEEP if kind == "sleep" else _name_wait(text))
        for key, text in kept.items():
            if key not in self.results and (step := _STEP.fullmatch(key)) is not None:
                self.results[key] = text
                self.kept_failures.add(key)
                self._add(step[1], step[2])
        self._unused = set(self._names)

    def _add(self, path: str, name: str) -> None:
        """Add a call, and the gathers that it is in."""
        while True:
            self._names[path] = name
            branch, _, position = path.rpartition(".")
            self._last_positions[branch] = max(self._last_positions.get(branch, 0), int(position))
            if not branch:
                return
            path, name = branch.rpartition(".")[0], GATHER

    def take(self, path: str) -> str | None:
        """Return the name of the stored call at a path, if any, and count it as used."""
        self._unused.discard(path)
        return self._names.get(path)

    def first_unused(self) -> str | None:
        """Return the first stored call that the workflow has not made."""
        if not self._unused:
            return None
        path = min(self._unused, key=lambda each: [int(part) for part in each.split(".")])
        return f"{path} {self._names[path]}"

    def has_passed(self, branch: str, position: int) -> bool:
        """Return whether a call of a branch after this position is stored."""
        return self._last_positions.get(branch, 0) > position

    @property
    def is_empty(self) -> bool:
        """Whether no call is stored."""
        return not self._names


def describe_child(job: str) -> str:
    """Return the name of the call that runs a job as a child."""
    return f"ctx.run({job})"


def _name_wait(text: str) -> str:
    """Return the name of the call that began a wait, from the name of its event."""
    event: str = from_json(text)
    return describe_child(event.removeprefix(CHILD_EVENT)) if event.startswith(CHILD_EVENT) else WAIT
