"""The entry point: what identity synchronisation contributes to Tenuto. Everything else is imported when it is
needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenuto.extension import DefinitionList, Extension, ExtensionServices, PartitionedTable, Retention, StepKind
from tenuto.extras import require_extra

if TYPE_CHECKING:
    from tenuto_identity.settings import IdentitySettings


class Identity(Extension):
    """The extension. Without the packages of its extra it is not loaded."""

    name = "identity"
    requires_tenuto = ">=0.1,<0.2"

    def __init__(self) -> None:
        require_extra("identity", "identity synchronisation")

    def settings(self) -> type[IdentitySettings]:
        from tenuto_identity.settings import IdentitySettings

        return IdentitySettings

    def migrations(self) -> Path:
        return Path(__file__).parent / "store" / "migrations"

    def partitioned_tables(self) -> Sequence[PartitionedTable]:
        return [PartitionedTable("items", key="id"), PartitionedTable("changes", key="id")]

    def step_kinds(self, services: ExtensionServices) -> Sequence[StepKind]:
        from tenuto_identity.runs.step_kinds import run_profile_kind

        return [run_profile_kind(services)]

    def retention(self) -> Sequence[Retention]:
        from tenuto_identity.store.runs import delete_ended_runs

        return [Retention("runs", delete_ended_runs)]

    def definition_lists(self) -> Sequence[DefinitionList[Any]]:
        from tenuto_identity.definitions.lists import definition_lists

        return definition_lists()
