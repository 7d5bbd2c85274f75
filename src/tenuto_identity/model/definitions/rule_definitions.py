"""Definitions of sync rules: parsing, and binding to the systems and metaverse types that they name.

`parse_rule` checks one rule by itself. `bind_rule` compiles its expressions against the schema; it raises `Invalid`
with "did you mean" for every name that does not exist. `bind_rules` binds all rules and builds the `RuleSet` of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tenuto.errors import Invalid, quoted
from tenuto.model.triggers.zones import load_zone
from tenuto_identity.model.definitions.definition_reader import Reader, child, error, suggestion
from tenuto_identity.model.definitions.system_definitions import SystemDefinition, parse_name
from tenuto_identity.model.rules.expression_values import (
    Kind,
)
from tenuto_identity.model.rules.expressions import Expression, compile_expression
from tenuto_identity.model.rules.sync_rules import (
    DEFAULT_CLEAN,
    DEFAULT_PRIORITY,
    AttributeMapping,
    Clean,
    Direction,
    MatchRule,
    MissingInput,
    OutOfScope,
    RuleSet,
    SyncRule,
    TextCase,
)
from tenuto_identity.model.rules.variables import kind_of, metaverse_kinds, object_kinds
from tenuto_identity.model.schema import ADDRESS, Attribute, MetaverseType, ObjectType, Writable
from tenuto_identity.model.values import DataType

_RULE_FIELDS = (
    "name", "in", "out", "scope", "match", "project", "provision", "owned", "on_out_of_scope", "map", "zone",
    "enabled", "enforce", "priority", "clean", "description",
)  # fmt: skip
_IN_FIELDS = ("system", "type", "to")
_OUT_FIELDS = ("from", "system", "type")
_MATCH_FIELDS = ("object", "value", "metaverse", "case")
_MAPPING_FIELDS = ("from", "value", "priority", "null_is_value", "missing", "for_each", "clean", "first")
_OUT_MAPPING_FIELDS = ("from", "value", "missing", "for_each", "first", "only_on_create", "enforce")
_CLEAN_FIELDS = ("trim", "collapse", "case", "blank_is_null")
_ADDRESS = Attribute(ADDRESS)
_KIND_TYPES: Mapping[Kind, frozenset[DataType]] = {
    Kind.BOOLEAN: frozenset({DataType.BOOLEAN, DataType.TEXT}),
    Kind.NUMBER: frozenset({DataType.INTEGER, DataType.DECIMAL, DataType.TEXT}),
    Kind.INSTANT: frozenset({DataType.DATE, DataType.DATETIME, DataType.TEXT}),
    Kind.BINARY: frozenset({DataType.BINARY}),
}
"""Attribute types that take results of a kind; texts are parsed, so that they fit every type."""


@dataclass(frozen=True, slots=True)
class DeclaredRule:
    """A sync rule that was checked by itself and is not bound to a schema yet."""

    name: str
    direction: Direction
    system: str
    object_type: str
    metaverse_type: str
    reader: Reader

    @property
    def section(self) -> str:
        """Return the field that names system and types: ``in`` or ``out``."""
        return self.direction.value


def parse_rule(value: object) -> DeclaredRule:
    """Check a sync rule by itself; raise `Invalid`."""
    reader = Reader(value, "a sync rule", known=_RULE_FIELDS)
    name = parse_name(reader.text("name"), "name", "a sync rule")
    if ("in" in reader) == ("out" in reader):
        raise error(
            f"the rule {name} must have either in or out",
            "in",
            "write in: {system: HR, type: person, to: person} or out: {from: person, system: AD, type: user}",
        )
    direction = Direction.IN if "in" in reader else Direction.OUT
    fields = _IN_FIELDS if direction is Direction.IN else _OUT_FIELDS
    section = Reader(reader.raw(direction.value), direction.value, direction.value, known=fields)
    for other, only in (("project", Direction.IN), ("provision", Direction.OUT), ("owned", Direction.OUT)):
        if other in reader and direction is not only:
            raise error(f"{other} applies to {only.value} rules only", other, "remove it")
    return DeclaredRule(
        name,
        direction,
        section.text("system"),
        section.text("type"),
        section.text("to" if direction is Direction.IN else "from"),
        reader,
    )


def bind_rule(
    declared: DeclaredRule,
    number: int,
    systems: Mapping[str, SystemDefinition],
    metaverse_types: Mapping[str, MetaverseType],
) -> SyncRule:
    """Return a rule with compiled expressions; raise `Invalid` for names that do not exist."""
    system = _find(systems, declared.system, "system", child(declared.section, "system"))
    object_type = _find(system.types, declared.object_type, f"type of {system.name}", child(declared.section, "type"))
    side = "to" if declared.direction is Direction.IN else "from"
    metaverse_type = _find(metaverse_types, declared.metaverse_type, "metaverse type", child(declared.section, side))
    return _Binder(declared, object_type, metaverse_type).bind(number)


def bind_rules(
    rules: Iterable[tuple[int, DeclaredRule]],
    systems: Mapping[str, SystemDefinition],
    metaverse_types: Mapping[str, MetaverseType],
) -> RuleSet:
    """Return the rules and types of a run."""
    bound = [bind_rule(declared, number, systems, metaverse_types) for number, declared in rules]
    return RuleSet(
        rules=tuple(sorted(bound, key=lambda rule: rule.number)),
        metaverse_types=dict(metaverse_types),
        object_types={
            (system.name, name): object_type
            for system in systems.values()
            for name, object_type in system.types.items()
        },
    )


def check_metaverse_type(
    metaverse_type: MetaverseType, systems: Iterable[str], metaverse_types: Mapping[str, MetaverseType]
) -> None:
    """Check the names that a metaverse type mentions; raise `Invalid`."""
    known = list(systems)
    for source in sorted(metaverse_type.deletion.sources):
        if source not in known:
            raise error(
                f"the deletion rule of {metaverse_type.name} names the system {quoted(source)}, which does not exist",
                "deletion.sources",
                suggestion(source, known),
            )
    for name, attribute in metaverse_type.attributes.items():
        if attribute.to is not None and attribute.to not in metaverse_types:
            raise error(
                f"{name} refers to the metaverse type {quoted(attribute.to)}, which does not exist",
                f"attributes.{name}.to",
                suggestion(attribute.to, metaverse_types),
            )


def _find(known: Mapping[str, Any], name: str, what: str, path: str) -> Any:
    if name not in known:
        raise Invalid(
            f"there is no {what} {quoted(name)}",
            code="identity.definition.name_unknown",
            field=path,
            remedy=suggestion(name, known),
        )
    return known[name]


class _Binder:
    """Binds one rule to its object type and metaverse type."""

    def __init__(self, declared: DeclaredRule, object_type: ObjectType, metaverse_type: MetaverseType) -> None:
        self._declared = declared
        self._reader = declared.reader
        self._object_type = object_type
        self._metaverse_type = metaverse_type
        self._is_in = declared.direction is Direction.IN
        self._sources: Mapping[str, Attribute]
        self._targets: Mapping[str, Attribute]
        if self._is_in:
            self._sources, self._targets = object_type.attributes, metaverse_type.attributes
            self._kinds = object_kinds(object_type)
        else:
            self._sources = metaverse_type.attributes
            self._targets = {**object_type.attributes, ADDRESS: _ADDRESS}
            self._kinds = metaverse_kinds(metaverse_type)

    def bind(self, number: int) -> SyncRule:
        reader, declared = self._reader, self._declared
        action, disable_mappings = self._out_of_scope()
        match = tuple(self._match(each, child("match", index)) for index, each in enumerate(reader.items("match")))
        zone = reader.text("zone", "UTC")
        try:
            load_zone(zone)
        except Invalid as problem:
            raise error(problem.message, "zone", problem.remedy) from None
        return SyncRule(
            number=number,
            name=declared.name,
            direction=declared.direction,
            system=declared.system,
            object_type=declared.object_type,
            metaverse_type=declared.metaverse_type,
            scope=self._scope(),
            match=match,
            project=reader.flag("project", False),
            provision=reader.flag("provision", False),
            owned=reader.flag("owned", False),
            on_out_of_scope=action,
            disable_mappings=disable_mappings,
            mappings=self._mappings(reader.raw("map"), "map"),
            zone=zone,
            enabled=reader.flag("enabled", True),
        )

    def _scope(self) -> Expression | None:
        if "scope" not in self._reader:
            return None
        scope = compile_expression(self._reader.text("scope"), self._kinds, field="scope")
        if scope.kind not in (Kind.BOOLEAN, Kind.ANY):
            raise error(f"the scope {quoted(scope.text)} gives a {scope.kind.value}", "scope", "write a condition")
        return scope

    def _match(self, value: object, path: str) -> MatchRule:
        reader = Reader(value, "match", path, known=_MATCH_FIELDS)
        metaverse = reader.text("metaverse")
        self._value_attribute(self._metaverse_type.attributes, metaverse, reader.at("metaverse"))
        if ("object" in reader) == ("value" in reader):
            raise error("match must have either object or value", path, "write {object: mail, metaverse: mail}")
        case = reader.raw("case")
        if case not in (None, "ignore", "exact"):
            raise error(
                f"case is {quoted(case)}, must be ignore or exact",
                reader.at("case"),
                suggestion(case, ["ignore", "exact"]),
            )
        object_name = reader.optional_text("object")
        if object_name is not None:
            self._value_attribute(self._object_type.attributes, object_name, reader.at("object"))
            return MatchRule(metaverse, object=object_name, exact_case=case == "exact")
        kinds = object_kinds(self._object_type)
        expression = compile_expression(reader.text("value"), kinds, field=reader.at("value"))
        return MatchRule(metaverse, value=expression, exact_case=case == "exact")

    def _value_attribute(self, attributes: Mapping[str, Attribute], name: str, path: str) -> Attribute:
        attribute = attributes.get(name)
        if attribute is None:
            raise error(f"there is no attribute {quoted(name)}", path, suggestion(name, attributes))
        if attribute.is_reference:
            raise error(f"{name} is a reference, which cannot be matched", path)
        return attribute

    def _out_of_scope(self) -> tuple[OutOfScope, tuple[AttributeMapping, ...]]:
        reader = self._reader
        value = reader.raw("on_out_of_scope")
        if isinstance(value, Mapping):
            fields = Reader(value, "on_out_of_scope", "on_out_of_scope", known=("disable",))
            mappings = self._mappings(fields.required("disable"), fields.at("disable"))
            action = OutOfScope.DISABLE
        else:
            action = reader.choice("on_out_of_scope", OutOfScope, OutOfScope.DISCONNECT)
            mappings = ()
            if action is OutOfScope.DISABLE:
                raise error("disable needs the values to set", "on_out_of_scope", "write {disable: {attribute: …}}")
        if self._is_in and action in (OutOfScope.DELETE, OutOfScope.DISABLE):
            raise error(f"{action.value} applies to out rules only", "on_out_of_scope", "use remain or disconnect")
        return action, mappings

    # --- mappings ---------------------------------------------------------------------------------------------------

    def _mappings(self, value: object, path: str) -> tuple[AttributeMapping, ...]:
        if value is None:
            return ()
        reader = Reader(value, path, path)
        found: dict[str, AttributeMapping] = {}
        for index, name in enumerate(reader.texts("same") if "same" not in self._targets else []):
            place = child(child(path, "same"), index)
            self._add(found, self._mapping(name, name, place), place)
        for name in reader.names():
            if name == "same" and "same" not in self._targets:
                continue
            self._add(found, self._mapping(name, reader.raw(name), reader.at(name)), reader.at(name))
        return tuple(found.values())

    def _add(self, found: dict[str, AttributeMapping], mapping: AttributeMapping, path: str) -> None:
        if mapping.to in found:
            raise error(f"{mapping.to} is mapped twice", path, "remove one of the mappings")
        found[mapping.to] = mapping

    def _mapping(self, to: str, value: object, path: str) -> AttributeMapping:
        target = self._targets.get(to)
        if target is None:
            where = self._metaverse_type.name if self._is_in else self._object_type.name
            raise error(f"{where} has no attribute {quoted(to)}", path, suggestion(to, self._targets))
        if not self._is_in and target.writable is Writable.NO:
            raise error(f"{to} is read-only", path, "remove the mapping")
        if isinstance(value, str):
            value = {"from": value}
        reader = Reader(
            value, f"the mapping of {to}", path, known=_MAPPING_FIELDS if self._is_in else _OUT_MAPPING_FIELDS
        )
        if ("from" in reader) == ("value" in reader):
            raise error(f"the mapping of {to} must have either from or value", path, "write {from: ATTRIBUTE}")
        source = self._source(reader, target) if "from" in reader else None
        expression = self._expression(reader, target) if "value" in reader else None
        first = reader.raw("first")
        if first not in (None, "sorted"):
            raise error(f"first {quoted(first)} is not known", reader.at("first"), suggestion(first, ["sorted"]))
        return AttributeMapping(
            to=to,
            source=source,
            value=expression,
            priority=reader.integer(
                "priority", self._reader.integer("priority", DEFAULT_PRIORITY, 1, 1_000_000), 1, 1_000_000
            ),
            null_is_value=reader.flag("null_is_value", False),
            missing=reader.choice("missing", MissingInput, MissingInput.NO_VALUE),
            for_each=self._for_each(reader),
            clean=self._clean(reader),
            first_sorted=first == "sorted",
            only_on_create=reader.flag("only_on_create", False),
            enforce=reader.flag("enforce", self._reader.flag("enforce", True)),
        )

    def _source(self, reader: Reader, target: Attribute) -> str:
        name = reader.text("from")
        path = reader.at("from") if isinstance(reader.raw("from"), str) else reader.path
        if name == ADDRESS and self._is_in and not target.is_reference:
            return name
        source = self._sources.get(name)
        if source is None:
            where = self._object_type.name if self._is_in else self._metaverse_type.name
            raise error(f"{where} has no attribute {quoted(name)}", path, suggestion(name, self._sources))
        if source.is_reference != target.is_reference:
            raise error(
                f"{target.name} is a {target.type.value} and {name} is a {source.type.value}",
                path,
                "references flow to references only",
            )
        if DataType.BINARY in (source.type, target.type) and source.type is not target.type:
            raise error(f"{target.name} is a {target.type.value} and {name} is a {source.type.value}", path)
        return name

    def _for_each(self, reader: Reader) -> str | None:
        name = reader.optional_text("for_each")
        if name is None:
            return None
        attribute = self._sources.get(name)
        if attribute is None or not attribute.multi or attribute.is_reference:
            names = [each.name for each in self._sources.values() if each.multi and not each.is_reference]
            raise error(
                f"for_each {quoted(name)} is not a multi-valued attribute",
                reader.at("for_each"),
                suggestion(name, names),
            )
        return name

    def _expression(self, reader: Reader, target: Attribute) -> Expression:
        kinds = self._kinds
        if (each := self._for_each(reader)) is not None:
            single = self._sources[each]
            kinds = {**kinds, "value": kind_of(Attribute(each, single.type))}
        path = reader.at("value")
        if target.is_reference:
            raise error(f"{target.name} is a reference and cannot be computed", path, "write from: ATTRIBUTE")
        references = {name for name, attribute in self._sources.items() if attribute.is_reference}
        try:
            expression = compile_expression(reader.text("value"), kinds, field=path)
        except Invalid as problem:
            used = next((name for name in references if f"unknown name {name} " in f"{problem.message} "), None)
            if used is not None:
                raise error(f"{used} is a reference and cannot be used in expressions", path) from None
            raise
        if expression.is_unique and (not self._is_in or target.multi or target.type is not DataType.TEXT):
            raise error("unique gives one text to a metaverse attribute", path)
        if expression.kind is Kind.LIST and not target.multi and reader.raw("first") != "sorted":
            raise error(
                f"{target.name} takes one value, and the expression {quoted(expression.text)} gives a list",
                path,
                "write first(…), or first: sorted",
            )
        fitting = _KIND_TYPES.get(expression.kind)
        if fitting is not None and target.type not in fitting:
            raise error(
                f"{target.name} is a {target.type.value}, and the expression {quoted(expression.text)} gives a "
                f"{expression.kind.value}",
                path,
            )
        return expression

    def _clean(self, reader: Reader) -> Clean:
        own = reader.raw("clean")
        value = own if own is not None else self._reader.raw("clean")
        if value is None:
            return DEFAULT_CLEAN
        path = reader.at("clean") if own is not None else "clean"
        fields = Reader(value, "clean", path, known=_CLEAN_FIELDS)
        case = fields.raw("case")
        return Clean(
            trim=fields.flag("trim", True),
            collapse=fields.flag("collapse", False),
            case=None if case is None else fields.as_choice(case, TextCase, "case"),
            blank_is_null=fields.flag("blank_is_null", True),
        )
