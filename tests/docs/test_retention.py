"""The page on retention lists exactly the tables that housekeeping deletes from."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from tenuto import store
from tenuto.maintenance.housekeeping import RETENTION
from tenuto.operations.built_in_extensions import BUILT_IN
from tenuto.store import database_history, partitions
from tenuto.store.access import secrets
from tenuto.store.definitions import queues
from tenuto.store.work import workers
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "how-to" / "retention.md"
DELETIONS: list[Callable[..., Any]] = [
    *(each.delete_batch for each in RETENTION),
    *(each.delete_batch for extension in BUILT_IN for each in extension.retention()),
    partitions.delete_old_default_rows,
    workers.delete_ended_processes,
    workers.delete_unused_buckets,
    database_history.delete_old_marks,
    database_history.delete_old_losses,
]


def tables_deleted_by(deletion: Callable[..., Any]) -> set[str]:
    """Return the tables from which the statements of a store function delete."""
    statements = deletion.__globals__["SQL"]
    names = re.findall(r"\bSQL\.(\w+)", inspect.getsource(deletion))
    return {table for name in names for table in re.findall(r"DELETE FROM tenuto\.(\w+)", getattr(statements, name))}


def test_retention_page_lists_exactly_the_tables_with_deletions() -> None:
    deleted = [tables_deleted_by(deletion) for deletion in DELETIONS]
    assert all(deleted), "every deletion has a DELETE statement"
    listed = re.findall(r"^\| `(\w+)` \| \S", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(set().union(*deleted))


def test_housekeeping_calls_every_deletion_of_the_store() -> None:
    modules = [import_module(found.name) for found in walk_packages(store.__path__, f"{store.__name__}.")]
    deletions = {
        function
        for module in modules
        for name, function in vars(module).items()
        if name.startswith("delete_") and inspect.iscoroutinefunction(function)
    }
    by_request = {secrets.delete_secret, queues.delete_unset_queues}
    of_extensions = partitions.delete_old_default_rows_of_table  # called for each partitioned table
    called = {*DELETIONS, *by_request, of_extensions}
    assert len(deletions) > 10
    assert {f"{one.__module__}.{one.__name__}" for one in deletions - called} == set()
