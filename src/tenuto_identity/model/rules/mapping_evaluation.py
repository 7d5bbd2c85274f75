"""Evaluation of one mapping for one object: values or references, a missing value, or a note why there is no result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from tenuto_identity.model.rules.expression_values import (
    UniqueBases,
)
from tenuto_identity.model.rules.expressions import ExpressionFailed, RuleClock, Variables
from tenuto_identity.model.rules.sync_rules import (
    DEFAULT_CLEAN,
    AttributeMapping,
    Clean,
    MissingInput,
    SyncRule,
    TextCase,
    earlier,
)
from tenuto_identity.model.rules.variables import with_value
from tenuto_identity.model.schema import Attribute
from tenuto_identity.model.value_class import value_class
from tenuto_identity.model.values import (
    BadValue,
    DataType,
    Document,
    Value,
    canonical_value,
    canonical_values,
    python_value,
)

_BLANKS = re.compile(r"\s+")


class NoteCode(StrEnum):
    """Why an attribute did not flow as the rule says; also the error of the item."""

    SEVERAL_VALUES = "several_values"
    EXPRESSION_FAILED = "expression_failed"
    UNRESOLVED_REFERENCE = "unresolved_reference"
    MISSING_INPUT = "missing_input"
    """Information only: an input has no value, so the attribute has none."""


@dataclass(frozen=True, slots=True)
class Note:
    """A remark about one attribute of one object."""

    code: NoteCode
    attribute: str
    rule: str
    message: str
    count: int = 1

    @property
    def is_error(self) -> bool:
        """Whether the item is in error. Unresolved references and missing inputs are not."""
        return self.code in (NoteCode.SEVERAL_VALUES, NoteCode.EXPRESSION_FAILED)


@value_class
class Mapped:
    """Result of a mapping."""

    values: tuple[Value, ...] = ()
    unique: UniqueBases | None = None
    note: Note | None = None
    """With an error: nothing flows and the old value stays."""
    reevaluate_at: datetime | None = None

    @property
    def has_failed(self) -> bool:
        return self.note is not None and self.note.is_error


_NO_VALUE = Mapped()


def evaluate_mapping(
    mapping: AttributeMapping,
    rule: SyncRule,
    target: Attribute,
    document: Document,
    source_attributes: Mapping[str, Attribute],
    variables: Variables,
    now: datetime,
    *,
    cleans: bool,
) -> Mapped:
    """Return the values that a mapping yields for an attribute that is not a reference."""
    if mapping.source is not None and (copied := _copy_one(mapping, target, document, source_attributes, cleans)):
        return copied
    reevaluate_at: datetime | None = None
    try:
        if mapping.source is not None:
            raw = _copied(mapping.source, target, document, source_attributes, variables)
        else:
            raw, reevaluate_at = _computed(mapping, variables, RuleClock(now, rule.zone))
            if len(raw) == 1:  # the common case; the code below gives the same result
                if isinstance(raw[0], UniqueBases):
                    return Mapped(unique=raw[0], reevaluate_at=reevaluate_at)
                if (value := _convert(raw[0], target, mapping.clean, cleans)) is not None:
                    return Mapped((value,), reevaluate_at=reevaluate_at)
        values = [value for each in raw if (value := _convert(each, target, mapping.clean, cleans)) is not None]
    except ExpressionFailed as error:
        return Mapped(note=_failure(error, mapping, rule), reevaluate_at=reevaluate_at)
    found = canonical_values(values)
    if len(found) > 1 and not target.multi:
        if not mapping.first_sorted:
            message = f"{target.name} takes one value, and the mapping of {rule.name} gives {len(found)}"
            return Mapped(note=Note(NoteCode.SEVERAL_VALUES, target.name, rule.name, message, len(found)))
        found = found[:1]
    note = None if found else _missing_note(mapping, rule, variables)
    if note is not None and note.is_error:
        return Mapped(note=note, reevaluate_at=reevaluate_at)
    return Mapped(tuple(found), note=note, reevaluate_at=reevaluate_at)


def copied_attribute(
    mapping: AttributeMapping, target: Attribute, source_attributes: Mapping[str, Attribute], *, cleans: bool
) -> str | None:
    """Return the attribute whose single value a mapping yields as it is, but for blanks around a text if ``cleans``.

    None if the value is computed, converted or cleaned in another way.
    """
    if mapping.source is None or mapping.source not in source_attributes:
        return None
    is_same_type = source_attributes[mapping.source].type is target.type
    is_clean = not cleans or target.type is not DataType.TEXT or mapping.clean == DEFAULT_CLEAN
    return mapping.source if is_same_type and is_clean else None


def _copy_one(
    mapping: AttributeMapping,
    target: Attribute,
    document: Document,
    source_attributes: Mapping[str, Attribute],
    cleans: bool,
) -> Mapped | None:
    """Return the result of copying no value or one value without conversion, which is the common case.

    It is what the general code gives; `test_copy_of_one_value_equals_the_general_code` compares them.
    """
    source = mapping.source or ""
    attribute = source_attributes.get(source)
    if attribute is None or attribute.type is not target.type:
        return None
    found = document.get(source)
    if not found:
        return _NO_VALUE
    if len(found) > 1:
        return None
    value: Value | None = found[0]
    if cleans and target.type is DataType.TEXT and isinstance(value, str):
        value = clean_text(value, mapping.clean)
    return _NO_VALUE if value is None else Mapped((value,))


def _copied(
    source: str,
    target: Attribute,
    document: Document,
    source_attributes: Mapping[str, Attribute],
    variables: Variables,
) -> list[Any]:
    attribute = source_attributes.get(source)
    if attribute is None:  # the address, or a name that only expressions know
        found = variables[source]
        return [] if found is None else [found]
    values = document.get(source, ())
    if attribute.type is target.type:
        return list(values)
    return [python_value(value, attribute.type) for value in values]


def _computed(mapping: AttributeMapping, variables: Variables, clock: RuleClock) -> tuple[list[Any], datetime | None]:
    assert mapping.value is not None
    if mapping.for_each is None:
        evaluation = mapping.value.evaluate(variables, clock)
        return evaluation.as_list(), evaluation.reevaluate_at
    items = variables[mapping.for_each]
    results: list[Any] = []
    reevaluate_at: datetime | None = None
    for item in items if isinstance(items, list) else [] if items is None else [items]:
        evaluation = mapping.value.evaluate(with_value(variables, item), clock)
        results.extend(evaluation.as_list())
        reevaluate_at = earlier(reevaluate_at, evaluation.reevaluate_at)
    return results, reevaluate_at


def _convert(value: Any, target: Attribute, clean: Clean, cleans: bool) -> Value | None:
    try:
        converted = canonical_value(value, target.type)
    except BadValue as error:
        raise ExpressionFailed(f"the result does not fit {target.name}: {error}") from None
    if cleans and isinstance(converted, str) and target.type is DataType.TEXT:
        return clean_text(converted, clean)
    return converted


def clean_text(text: str, clean: Clean) -> str | None:
    """Return a text after clean-up; None if it is blank."""
    if clean is DEFAULT_CLEAN:
        return text.strip() or None
    if clean.trim:
        text = text.strip()
    if clean.collapse:
        text = _BLANKS.sub(" ", text)
    match clean.case:
        case TextCase.LOWER:
            text = text.lower()
        case TextCase.UPPER:
            text = text.upper()
        case TextCase.TITLE:
            text = text.title()
        case None:
            pass
    return None if clean.blank_is_null and not text.strip() else text


def _failure(error: ExpressionFailed, mapping: AttributeMapping, rule: SyncRule) -> Note:
    expression = error.expression or (mapping.value.text if mapping.value else f"from {mapping.source}")
    inputs = ", ".join(f"{name}={value!r:.80}" for name, value in error.inputs.items())
    message = f"{rule.name}: {mapping.to} = {expression}: {error}" + (f" (inputs: {inputs})" if inputs else "")
    return Note(NoteCode.EXPRESSION_FAILED, mapping.to, rule.name, message)


def _missing_note(mapping: AttributeMapping, rule: SyncRule, variables: Variables) -> Note | None:
    names = mapping.value.names if mapping.value else frozenset()
    absent = sorted(name for name in names if name != "value" and variables[name] is None)
    if not absent:
        return None
    listed = ", ".join(absent)
    if mapping.missing is MissingInput.ERROR:
        message = f"{rule.name}: {mapping.to} needs {listed}, which has no value"
        return Note(NoteCode.EXPRESSION_FAILED, mapping.to, rule.name, message)
    return Note(NoteCode.MISSING_INPUT, mapping.to, rule.name, f"{mapping.to} has no value, because {listed} has none")
