"""The entry point: what identity synchronisation contributes to Tenuto. Everything else is imported when it is
needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tenuto.extension import Extension, PartitionedTable
from tenuto.extras import require_extra


class Identity(Extension):
    """The extension. Without the packages of its extra it is not loaded."""

    name = "identity"
    requires_tenuto = ">=0.1,<0.2"

    def __init__(self) -> None:
        require_extra("identity", "identity synchronisation")

    def migrations(self) -> Path:
        return Path(__file__).parent / "store" / "migrations"

    def partitioned_tables(self) -> Sequence[PartitionedTable]:
        return [PartitionedTable("items", key="id"), PartitionedTable("changes", key="id")]
