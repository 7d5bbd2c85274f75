"""The page on retention names every table that housekeeping deletes from, and none besides."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from tenuto import store
from tenuto.maintenance.housekeeping import _DELETIONS
from tenuto.store import partitions, workers
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "how-to" / "retention.md"
FORGETTING: list[Callable[..., Any]] = [*_DELETIONS.values(), partitions.delete_old_default_rows, workers.delete_ended_processes]


def deleted_by(forget: Callable[..., Any]) -> set[str]:
    """The tables a function of the store deletes from, by the statements it names."""
    statements = forget.__globals__["SQL"]
    named = re.findall(r"\bSQL\.(\w+)", inspect.getsource(forget))
    return {table for name in named for table in re.findall(r"DELETE FROM tenuto\.(\w+)", getattr(statements, name))}


def test_the_page_names_every_table_that_is_deleted_from_and_no_other() -> None:
    deleted = [deleted_by(forget) for forget in FORGETTING]
    assert all(deleted), "a statement that deletes is found for each"
    told = re.findall(r"^\| `(\w+)` \| \S", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(told) == sorted(set().union(*deleted))


def test_whatever_the_store_can_forget_is_forgotten() -> None:
    rooms = [import_module(f"{store.__name__}.{found.name}") for found in iter_modules(store.__path__)]
    able = {
        forget
        for room in rooms
        for name, forget in vars(room).items()
        if name.startswith("forget") and inspect.iscoroutinefunction(forget) and forget.__module__ == room.__name__
    }
    assert {f"{one.__module__}.{one.__name__}" for one in able - set(FORGETTING)} == set()
