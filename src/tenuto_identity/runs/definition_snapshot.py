"""The definitions that a run began with: systems, types and rules as model values, and the numbers of their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tenuto.errors import Invalid
from tenuto.jobs.context import PermanentFailure
from tenuto.postgres.database import Connection
from tenuto_identity.model.definitions.rule_definitions import bind_rules, parse_rule
from tenuto_identity.model.definitions.system_definitions import (
    RunProfile,
    SystemDefinition,
    parse_metaverse_type,
    parse_system,
)
from tenuto_identity.model.rules.sync_rules import Direction, RuleSet
from tenuto_identity.model.schema import MetaverseType, ObjectType
from tenuto_identity.model.sync.guards import GuardLimits
from tenuto_identity.store import definitions
from tenuto_identity.store.definitions import DefinitionKind, StoredDefinitions, SystemRow

__all__ = ["Configuration", "RunProfile", "System", "load_configuration"]


@dataclass(frozen=True)
class System:
    """A connected system: its definition and its row."""

    row: SystemRow
    definition: SystemDefinition
    type_numbers: Mapping[str, int]

    @property
    def number(self) -> int:
        return self.row.number

    @property
    def name(self) -> str:
        return self.row.name

    @cached_property
    def type_names(self) -> Mapping[int, str]:
        """Names of the object types by number."""
        return {number: name for name, number in self.type_numbers.items()}

    def object_type(self, number: int) -> ObjectType | None:
        """Return an object type by number; None if it is no longer selected."""
        return self.definition.types.get(self.type_names.get(number, ""))

    def profile(self, name: str) -> RunProfile:
        """Return a run profile; raise an error that retrying cannot remove."""
        found = self.definition.run_profiles.get(name)
        if found is None:
            known = ", ".join(sorted(self.definition.run_profiles)) or "none"
            raise PermanentFailure(
                f"the system {self.name!r} has no run profile {name!r}",
                code="identity.profile.not_found",
                remedy=f"its run profiles are: {known}",
            )
        return found

    def guards(self, profile: RunProfile) -> GuardLimits:
        """Return the limits of the guards of a run."""
        return profile.guards or self.definition.guards


@dataclass(frozen=True)
class Configuration:
    """All definitions as one consistent set."""

    stored: StoredDefinitions
    systems: Mapping[str, System]
    rules: RuleSet
    metaverse_type_numbers: Mapping[str, int]

    @property
    def rules_version(self) -> int:
        return self.stored.rules_version

    @property
    def attribute_numbers(self) -> Mapping[str, int]:
        return self.stored.attribute_numbers

    @cached_property
    def attribute_names(self) -> Mapping[int, str]:
        return {number: name for name, number in self.stored.attribute_numbers.items()}

    @cached_property
    def system_names(self) -> Mapping[int, str]:
        return {system.number: name for name, system in self.systems.items()}

    @cached_property
    def system_numbers(self) -> Mapping[str, int]:
        return {name: system.number for name, system in self.systems.items()}

    @cached_property
    def systems_by_number(self) -> Mapping[int, System]:
        return {system.number: system for system in self.systems.values()}

    @cached_property
    def metaverse_type_names(self) -> Mapping[int, str]:
        return {number: name for name, number in self.metaverse_type_numbers.items()}

    def metaverse_type(self, number: int) -> MetaverseType:
        return self.rules.metaverse_types[self.metaverse_type_names[number]]

    def match_signature(self, system: str) -> str:
        """Return a text that changes when the keys of the objects of a system must be made again: its match rules."""
        return repr(
            [
                (rule.object_type, match.metaverse, match.object, match.value.text if match.value else None)
                for rule in self.rules.rules
                if rule.enabled and rule.direction is Direction.OUT and rule.system == system
                for match in rule.match
            ]
        )

    def has_match_rules(self, system: str) -> bool:
        """Return whether out rules find existing objects of a system."""
        return any(rule.match for rule in self.rules.rules if rule.direction is Direction.OUT and rule.system == system)


async def load_configuration(connection: Connection) -> Configuration:
    """Load all definitions in the current transaction."""
    return build_configuration(await definitions.load_definitions(connection))


def build_configuration(stored: StoredDefinitions) -> Configuration:
    """Return definitions as model values; raise an error that names a definition that cannot be used."""
    rows = {row.name: row for row in stored.systems}
    parsed = {row.name: _parse(parse_system, row.definition, row.name) for row in stored.of_kind(DefinitionKind.SYSTEM)}
    types = {
        row.name: _parse(parse_metaverse_type, row.definition, row.name)
        for row in stored.of_kind(DefinitionKind.METAVERSE_TYPE)
    }
    rules = [
        (row.number, _parse(parse_rule, row.definition, row.name)) for row in stored.of_kind(DefinitionKind.SYNC_RULE)
    ]
    systems = {
        name: System(
            rows[name],
            definition,
            {
                type_name: number
                for (system_number, type_name), number in stored.type_numbers.items()
                if system_number == rows[name].number
            },
        )
        for name, definition in parsed.items()
    }
    return Configuration(
        stored,
        systems,
        bind_rules(rules, parsed, types),
        {row.name: row.number for row in stored.of_kind(DefinitionKind.METAVERSE_TYPE)},
    )


def _parse(parse: Any, definition: Any, name: str) -> Any:
    try:
        return parse(definition)
    except Invalid as error:
        raise PermanentFailure(
            f"the stored definition {name!r} cannot be used: {error.message}", code=error.code, remedy=error.remedy
        ) from error
