"""Dead letters: work that failed for good and waits for somebody to decide.

One open letter per item at most. It is resolved once, by running the item again or by acknowledging it, and a resolved
one never comes back. Failures of the same kind share a fingerprint: the exception's type and the innermost line of the
program's own code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class LetterStatus(StrEnum):
    AWAITING_INTERVENTION = "awaiting_intervention"
    RETRIED = "retried"
    ACKNOWLEDGED = "acknowledged"


_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+, in (?P<function>.+)$', re.MULTILINE)
_FOREIGN = ("/site-packages/", "/dist-packages/", "/lib/python", "/tenuto/jobs/", "/tenuto/steps/")


def fingerprint(error: Mapping[str, Any] | None) -> str:
    """The same for failures of the same kind, whatever their message says."""
    error = error or {}
    told = "|".join((str(error.get("type")), str(error.get("step")), _own_frame(str(error.get("stack") or ""))))
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def fingerprint_of_json(text: str | None) -> str:
    """The fingerprint of an error as recorded."""
    return fingerprint(json.loads(text) if text else None)


def _own_frame(stack: str) -> str:
    """The innermost frame that is not a library's. Line numbers are left out: an edit above it changes nothing."""
    frames = list(_FRAME.finditer(stack))
    own = [frame for frame in frames if not any(part in frame["file"] for part in _FOREIGN)]
    chosen = (own or frames)[-1:]
    return "".join(f"{frame['file'].rsplit('/', 1)[-1]}:{frame['function']}" for frame in chosen)


def summary(error: Mapping[str, Any] | None) -> str:
    """Why it failed, in one line."""
    error = error or {}
    message = str(error.get("message") or "").strip().splitlines()
    return f"{error.get('type', 'failed')}: {message[0]}" if message else str(error.get("type", "failed"))
