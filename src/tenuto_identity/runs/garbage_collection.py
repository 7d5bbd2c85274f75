"""Pauses of Python's cyclic garbage collection while a page is decided and written.

A page creates hundreds of thousands of objects that stay until it is written and contain no cycles. Collections in
between, and one at the end of a pause that begins before the page is freed, go through all of them: about a tenth of
the worker's CPU time in a full sync of new people (benchmark `identity`). A pause lasts one page; memory is freed by
reference counts as before. Cycles of other code are freed between two pages.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

MAX_OVERLAPPING_PAUSES = 20
"""Number of pauses that overlap without a gap after which cycles are collected nevertheless."""
_lock = Lock()
_active_count = 0
_was_enabled = False
_overlapping_count = 0


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pause the garbage collection in this process. Several runs may do so at the same time."""
    global _active_count, _was_enabled, _overlapping_count
    with _lock:
        if _active_count == 0:
            _was_enabled = gc.isenabled()
            _overlapping_count = 0
            gc.disable()
        _active_count += 1
    try:
        yield
    finally:
        with _lock:
            _active_count -= 1
            _overlapping_count += 1
            if _active_count == 0:
                if _was_enabled:
                    gc.enable()
            elif _was_enabled and _overlapping_count >= MAX_OVERLAPPING_PAUSES:
                _overlapping_count = 0
                gc.collect()
