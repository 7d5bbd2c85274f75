"""Dead letters: manifest runs and batch items that failed for good and wait for an operator's decision.

An item has at most one open dead letter. It is resolved once, by retrying or by acknowledging the item, and is not
reopened. Failures of the same kind share a fingerprint: the error type and the innermost frame of the program's code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class DeadLetterState(StrEnum):
    AWAITING_INTERVENTION = "awaiting_intervention"
    RETRIED = "retried"
    ACKNOWLEDGED = "acknowledged"


_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+, in (?P<function>.+)$', re.MULTILINE)
_LIBRARY_PATHS = ("/site-packages/", "/dist-packages/", "/lib/python", "/tenuto/jobs/", "/tenuto/steps/")


def error_fingerprint(error: Mapping[str, Any] | None) -> str:
    """Return a hash that failures of the same kind share, whatever their messages."""
    error = error or {}
    parts = (str(error.get("type")), str(error.get("step")), _innermost_own_frame(str(error.get("stack") or "")))
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]


def error_fingerprint_from_json(text: str | None) -> str:
    """Return the fingerprint of an error as recorded."""
    return error_fingerprint(json.loads(text) if text else None)


def _innermost_own_frame(stack: str) -> str:
    """Return the innermost frame outside libraries, without line number: an edit above it changes nothing."""
    frames = list(_FRAME.finditer(stack))
    own = [frame for frame in frames if not any(part in frame["file"] for part in _LIBRARY_PATHS)]
    chosen = (own or frames)[-1:]
    return "".join(f"{frame['file'].rsplit('/', 1)[-1]}:{frame['function']}" for frame in chosen)


def error_summary(error: Mapping[str, Any] | None) -> str:
    """Return the error type and the first line of its message."""
    error = error or {}
    message = str(error.get("message") or "").strip().splitlines()
    return f"{error.get('type', 'failed')}: {message[0]}" if message else str(error.get("type", "failed"))
