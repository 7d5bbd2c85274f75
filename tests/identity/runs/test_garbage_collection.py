"""Pauses of garbage collection end with the last of several, and leave a collection that was off alone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from tenuto_identity.runs.garbage_collection import MAX_OVERLAPPING_PAUSES, paused_collection


@pytest.fixture(autouse=True)
def _restore_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    if not was_enabled:
        gc.disable()


def test_collection_is_paused_until_the_last_of_several_pauses_ends() -> None:
    with paused_collection():
        assert not gc.isenabled()
        with paused_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collection_is_enabled_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="page"), paused_collection():
        raise ValueError("page")
    assert gc.isenabled()


def test_collection_that_the_application_turned_off_stays_off() -> None:
    gc.disable()
    with paused_collection():
        pass
    assert not gc.isenabled()


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_overlapping_pauses_do_not_keep_cycles_for_ever() -> None:
    collected = weakref.ref(_Cycle())
    with paused_collection():
        for _ in range(MAX_OVERLAPPING_PAUSES):
            assert not gc.isenabled()
            with paused_collection():
                pass
        assert collected() is None
