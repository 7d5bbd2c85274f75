"""Generates the reference of identity synchronisation: connectors, definition lists, expressions, commands, metrics.

Names, defaults and allowed values come from the code. The meanings of the fields of definition lists are here; a field
without one, and one that the code does not know, is an error.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tenuto_identity.cli.commands import identity
from tenuto_identity.connectors.contract import Capabilities
from tenuto_identity.connectors.ldap.settings import DeltaMethod, TypeSettings
from tenuto_identity.connectors.registry import connector_names, find_connector
from tenuto_identity.model.definitions import rule_definitions, system_definitions
from tenuto_identity.model.definitions.system_definitions import RunKind
from tenuto_identity.model.definitions.templates import GeneratorKind
from tenuto_identity.model.rules.expression_functions import (
    FUNCTIONS,
)
from tenuto_identity.model.rules.expression_values import (
    UniqueBases,
)
from tenuto_identity.model.rules.expressions import RuleClock, Variables, compile_expression
from tenuto_identity.model.schema import ContainerScope, DeletionTrigger, Writable
from tenuto_identity.model.sync.guards import GuardKind
from tenuto_identity.model.values import DataType, EqualityKind
from tenuto_identity.monitoring import metric_sources
from tenuto_identity.settings import IdentitySettings

Fields = Mapping[str, str]
NOW = datetime(2026, 1, 31, 8, tzinfo=UTC)


def choices(kind: type[StrEnum]) -> str:
    return ", ".join(f"`{each.value}`" for each in kind)


SYSTEM: Fields = {
    "name": "Unique name. Required.",
    "connector": "Kind of the connector. Required.",
    "settings": "Settings of the connector; see [connectors](#connectors).",
    "types": "Object types that are read or written. Required.",
    "containers": "Containers that are read and written; all by default. An address, or a mapping.",
    "guards": "Limits of the [guards](../how-to/sync-rules.md#guards).",
    "run_profiles": "Named operations.",
    "on_bad_value": "What a value that does not fit its type leads to: `keep` (the old value stays) or `reject` "
    "(the object is in error).",
    "on_lost_watermark": "What a delta import without a valid watermark does: `full` (default) or `fail`.",
    "enabled": "`false` refuses all runs. Default: `true`.",
    "description": "Text for people.",
}
TYPE: Fields = {
    "name": "Name of the type; for LDAP the object class, unless `settings.types` names another. Required.",
    "anchor": "Attribute that identifies an object for ever: `text`, `integer` or `guid`, one value. Required.",
    "address": "Attribute that is the address, for systems without addresses of their own.",
    "address_format": "`text` or `dn`. Default: `dn` for LDAP.",
    "attributes": "Name → type, or a mapping. Required.",
    "preset": "`ad`: equality of attributes as Active Directory compares them.",
}
ATTRIBUTE: Fields = {
    "type": f"{choices(DataType)}. Default: `text`.",
    "multi": "`true`: a set of values. Default: `false`.",
    "to": "For `reference`: the type referred to.",
    "writable": f"{choices(Writable)}; only in systems.",
    "equality": f"How a sent value is compared with the imported one: {choices(EqualityKind)}, or a mapping; only in "
    "systems.",
    "sensitive": "`true` hides the values from viewers, lists and logs.",
}
EQUALITY: Fields = {
    "kind": f"{choices(EqualityKind)}. Required.",
    "bits": "For `mask`: the bits that are compared.",
    "precision": "For `instant`: values in the same interval of this length are equal. Default: one second.",
    "equivalent": "Values that mean the same.",
}
CONTAINER: Fields = {
    "address": "Address of the container. Required.",
    "include": "`false` excludes it; the nearest container decides. Default: `true`.",
    "scope": f"{choices(ContainerScope)}. Default: `subtree`.",
}
PROFILE: Fields = {
    "name": "Name within the system. Required.",
    "kind": f"{choices(RunKind)}. Required.",
    "page_size": "Objects in one transaction.",
    "batch_size": "Exports: requests in one call of the connector.",
    "limit": "Exports: how many requests are sent before the run stops.",
    "preview": "Refused: use `tenuto identity preview`.",
    "partition": "Naming context, for connectors with several.",
    "guards": "Limits for this profile instead of those of the system.",
    "on_lost_watermark": "As for the system.",
    "evaluate_all": "Full syncs: `true` processes also objects about which nothing has changed.",
}
GUARDS: Fields = {
    "percent": "Share above which all guards trip. Default: 20 %.",
    "at_least": "Number from which on they trip. Default: 10.",
    **{
        each.value: "Percentage, or `{percent, at_least}`, of this guard."
        for each in GuardKind
        if each is not GuardKind.EMPTY_SOURCE
    },
}
METAVERSE: Fields = {
    "type": "Name of the type. Required.",
    "attributes": "Name → type, or a mapping with `type`, `multi`, `to` and `sensitive`. Required.",
    "deletion": f"When an object is deleted: {choices(DeletionTrigger)}, or a mapping. Default: `last_connector`.",
    "display": "Attribute that lists show. Default: `display`, `display_name` or `name`.",
    "description": "Text for people.",
}
DELETION: Fields = {
    "rule": choices(DeletionTrigger) + ".",
    "sources": "For `authoritative_source`: the systems that decide.",
    "mode": "`any` (default) or `all` of them must have lost the object.",
    "grace": "How long the deletion waits, such as `30d`; a return cancels it.",
}
RULE: Fields = {
    "name": "Unique name. Required.",
    "in": "`{system, type, to}`: from a type of a system to a metaverse type.",
    "out": "`{from, system, type}`: from a metaverse type to a type of a system. A rule has either `in` or `out`.",
    "scope": "Condition; objects for which it is not true are out of scope. Everything is in scope by default.",
    "match": "Attempts to find an existing partner, in order.",
    "project": "In rules: create a metaverse object if nothing matches.",
    "provision": "Out rules: create an object in the target if nothing matches.",
    "owned": "Out rules: objects that were joined, not created, may be deleted as well.",
    "on_out_of_scope": "`disconnect` (default), `remain`; out rules also `delete` or `{disable: {ATTRIBUTE: …}}`.",
    "map": "`same: [ATTRIBUTE, …]`, and target attribute → source attribute or mapping. `address` is the address.",
    "zone": "Time zone of `today()`. Default: `UTC`.",
    "enabled": "`false` switches the rule off. Default: `true`.",
    "enforce": "Default of `enforce` of the mappings.",
    "priority": "Default of `priority` of the mappings.",
    "clean": "Default of `clean` of the mappings.",
    "description": "Text for people.",
}
MATCH: Fields = {
    "object": "Attribute of the object.",
    "value": "Expression over the object, instead of `object`.",
    "metaverse": "Attribute of the metaverse object. Required.",
    "case": "`ignore` (default) or `exact`.",
}
MAPPING: Fields = {
    "from": "Source attribute.",
    "value": "Expression, instead of `from`.",
    "priority": "In rules: the smallest number wins. Default: 100.",
    "null_is_value": "In rules: a missing value wins, too, and clears the attribute.",
    "missing": "`no_value` (default) or `error`, if an input of the expression has no value.",
    "for_each": "Multi-valued attribute for whose values the expression is evaluated, as `value`.",
    "clean": "In rules: clean text before it is used.",
    "first": "`sorted`: take the first of several values.",
    "only_on_create": "Out rules: send the value only with a create.",
    "enforce": "Out rules: correct changes made in the target (default), or report them once.",
}
CLEAN: Fields = {
    "trim": "Remove blanks at both ends. Default: `true`.",
    "collapse": "Replace several blanks by one.",
    "case": "`lower`, `upper` or `title`.",
    "blank_is_null": "A blank text is no value. Default: `true`.",
}
TEMPLATE: Fields = {
    "name": "Unique name. Required.",
    "objects": "List of `{type, count, attributes: {ATTRIBUTE: GENERATOR}}`. Required.",
    "description": "Text for people.",
}

EXAMPLES: Fields = {
    "lower": 'lower("Ada")',
    "upper": 'upper("Ada")',
    "title": 'title("ada lovelace")',
    "trim": 'trim("  Ada ")',
    "collapse": 'collapse("Ada   Lovelace")',
    "ascii": 'ascii("Müller")',
    "slug": 'slug("José Peña")',
    "left": 'left("Lovelace", 4)',
    "right": 'right("Lovelace", 3)',
    "pad": 'pad("42", 6, "0")',
    "replace": 'replace("a-b", "-", ".")',
    "split": 'split("a;b", ";")',
    "join": 'join(["a", "b"], ", ")',
    "first": 'first(["a", "b"])',
    "sorted": 'sorted(["b", "a"])',
    "matches": 'matches("E1001", "^E[0-9]+$")',
    "extract": 'extract("E1001", "([0-9]+)")',
    "coalesce": 'coalesce(none, "Staff")',
    "today": "today()",
    "now": "now()",
    "date": 'date("2026-01-31")',
    "format_date": 'format_date(date("2026-01-31"), "%d.%m.%Y")',
    "add_days": 'add_days(date("2026-01-31"), 30)',
    "filetime": 'filetime(date("2026-01-31"))',
    "from_filetime": "from_filetime(134142912000000000)",
    "dn": 'dn("cn", "Lovelace, Ada", "ou=people,dc=test")',
    "escape_dn": 'escape_dn("Lovelace, Ada")',
    "rdn": 'rdn("cn=Ada,ou=people,dc=test")',
    "parent": 'parent("cn=Ada,ou=people,dc=test")',
    "bit": "bit(514, 2)",
    "set_bit": "set_bit(512, 2)",
    "clear_bit": "clear_bit(514, 2)",
    "phone_e164": 'phone_e164("030 123456", "DE")',
    "length": 'length("Ada")',
    "contains": 'contains("Lovelace", "love")',
    "starts_with": 'starts_with("Lovelace", "Love")',
    "ends_with": 'ends_with("Lovelace", "lace")',
    "unique": 'unique("ada")',
}


def identity_page(header: str, sections: Callable[[], Iterator[str]], metrics: Sequence[str]) -> str:
    """Return the page. ``sections`` yields the commands, ``metrics`` are the rows of their table."""
    system, rule = system_definitions, rule_definitions
    lines = [
        "# Identity synchronisation",
        "",
        header,
        "The connectors, definition lists, expressions and commands of the extra `identity`. Guides:",
        "[identity synchronisation](../how-to/identity.md), [systems and sync rules](../how-to/sync-rules.md),",
        "[connectors](../how-to/connectors.md).",
        "",
        "## Settings",
        "",
        "The table `[identity]` of the settings file, or `TENUTO_IDENTITY_…` in the environment.",
        "",
        *settings_table(IdentitySettings),
        "",
        "## Definition lists",
        "",
        "The lists `systems`, `metaverse`, `sync_rules` and `templates` of",
        "[definition files](../how-to/definition-files.md).",
        "",
        *fields_section("A system", SYSTEM, system._SYSTEM_FIELDS),
        *fields_section("An object type", TYPE, system._TYPE_FIELDS),
        *fields_section("An attribute", ATTRIBUTE, system._ATTRIBUTE_FIELDS),
        *fields_section("Equality", EQUALITY, system._EQUALITY_FIELDS),
        *fields_section("A container", CONTAINER, system._CONTAINER_FIELDS),
        *fields_section("A run profile", PROFILE, system._PROFILE_FIELDS),
        *fields_section("Guards", GUARDS, GUARDS),
        *fields_section("A metaverse type", METAVERSE, system._METAVERSE_FIELDS),
        *fields_section("Deletion", DELETION, system._DELETION_FIELDS),
        *fields_section("A sync rule", RULE, rule._RULE_FIELDS),
        *fields_section("Match", MATCH, rule._MATCH_FIELDS),
        *fields_section("A mapping", MAPPING, (*rule._MAPPING_FIELDS, *rule._OUT_MAPPING_FIELDS)),
        *fields_section("Clean", CLEAN, rule._CLEAN_FIELDS),
        *fields_section("A template", TEMPLATE, ("name", "objects", "description")),
        f"Generators of templates: {choices(GeneratorKind)}; `population` is the share of objects with a value.",
        "",
        "## Connectors",
        "",
        *(line for name in built_in_connectors() for line in connector_section(name)),
        "## Expressions",
        "",
        "One missing argument gives a missing result, except for `coalesce`. The results are those of",
        "2026-01-31 08:00 UTC.",
        "",
        "| function | example | result |",
        "|---|---|---|",
        *function_rows(),
        "",
        "## Commands",
        "",
        *sections(),
        "",
        "## Metrics",
        "",
        *metrics,
        "",
    ]
    return "\n".join(lines)


def identity_commands() -> Any:
    return identity


def identity_metrics() -> list[Any]:
    return [metric for source in metric_sources() for metric in source.metrics]


def fields_section(title: str, meanings: Fields, known: Sequence[str] | Fields) -> Iterator[str]:
    """Yield the table of the fields of a definition; every field that the code knows must have a meaning."""
    assert set(meanings) == set(known), (title, set(meanings) ^ set(known))
    yield from (f"### {title}", "", "| field | meaning |", "|---|---|")
    yield from (f"| `{name}` | {meaning} |" for name, meaning in meanings.items())
    yield ""


def built_in_connectors() -> list[str]:
    return [
        name for name in connector_names() if find_connector(name).settings.__module__.startswith("tenuto_identity.")
    ]


def connector_section(name: str) -> Iterator[str]:
    kind = find_connector(name)
    yield from (f"### {name}", "", f"Capabilities: {describe_capabilities(kind.capabilities)}.", "")
    yield from settings_table(kind.settings)
    yield ""
    if name == "ldap":
        yield from ("An entry of `types`:", "", *settings_table(TypeSettings), "")
        yield from ("Values of `delta`:", "", "| value | meaning |", "|---|---|")
        meanings = docstrings(DeltaMethod)
        yield from (f"| `{each.value}` | {meanings.get(each.name, 'No delta imports.')} |" for each in DeltaMethod)
        yield ""


def describe_capabilities(found: Capabilities) -> str:
    names = {
        "full import": found.full,
        "delta import": found.delta,
        "export": found.export,
        "containers": found.containers,
        "single objects": found.read_one,
        "confirmation by the success of a write": found.confirms_immediately,
    }
    return ", ".join(name for name, is_there in names.items() if is_there)


def settings_table(model: type[BaseModel]) -> Iterator[str]:
    meanings = docstrings(model)
    yield "| setting | default | allowed | meaning |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else f"`{format_default(field)}`"
        yield f"| `{name}` | {default} | {allowed(field)} | {cell(meanings.get(name, ''))} |"


def format_default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True) if field.default_factory is None else ()
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or value == ():
        return "none"
    return cell(str(value))


def allowed(field: FieldInfo) -> str:
    kinds = (
        get_args(field.annotation) if get_origin(field.annotation) in (Union, types.UnionType) else [field.annotation]
    )
    for kind in kinds:
        if get_origin(kind) is Literal:
            return ", ".join(f"`{each}`" for each in get_args(kind))
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            return choices(kind)
    least = next((each.ge for each in field.metadata if hasattr(each, "ge")), None)
    most = next((each.le for each in field.metadata if hasattr(each, "le")), None)
    return f"{least:,} to {most:,}" if least is not None and most is not None else ""


def function_rows() -> Iterator[str]:
    """Yield the functions with an example that is evaluated here."""
    assert set(EXAMPLES) == set(FUNCTIONS), set(EXAMPLES) ^ set(FUNCTIONS)
    for name, signature in FUNCTIONS.items():
        example = EXAMPLES[name]
        result = compile_expression(example, {}).evaluate(Variables(lambda name: None), RuleClock(NOW, "UTC")).value
        shown = example.replace("|", "\\|")
        yield f"| `{cell(signature.usage)}` | `{shown}` | {format_result(result)} |"


def format_result(value: Any) -> str:
    if isinstance(value, UniqueBases):
        return ", ".join(f"`{each}`" for each in value.candidates()[:3]) + " …: the first one that is free"
    if isinstance(value, list):
        return ", ".join(f"`{each}`" for each in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def docstrings(kind: type[Any]) -> dict[str, str]:
    """Return the attribute docstrings of a class, also of an enumeration."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for above, below in zip(body.body, body.body[1:], strict=False):
        target: ast.expr | None = above.target if isinstance(above, ast.AnnAssign) else None
        if isinstance(above, ast.Assign):
            target = above.targets[0]
        if isinstance(target, ast.Name) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[target.id] = " ".join(str(below.value.value).split()).replace("``", "`")
    return found


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
