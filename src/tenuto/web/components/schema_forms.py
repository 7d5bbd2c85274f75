"""Form fields from JSON schemas: the input of a job, the properties of a manifest, the arguments of a step.

A field that has no simple form, such as a nested object, is edited as JSON. The browser reads the fields by their
attributes (static/js/forms.js); the server checks the values when they are sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenuto.model.validation import INVISIBLE_CHARACTERS
from tenuto.presentation.text_formats import escape_control_characters, one_line

MAX_OPTIONS = 200
_LONG_TEXT_CHARACTERS = 60
_LONG_NAMES = ("text", "script", "body", "message", "stdin", "query")
"""Names of arguments whose texts usually have several lines."""


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a form."""

    name: str
    label: str
    type: str
    """How the browser reads it: ``text``, ``number``, ``checkbox``, ``scalar`` (number or text), ``list``,
    ``numbers``, ``lines``, ``json``, or ``rest`` (an object with all further arguments)."""
    value: str = ""
    is_checked: bool = False
    is_required: bool = False
    is_given: bool = False
    """Whether the stored value has this field, which then is sent although it equals the default."""
    is_long: bool = False
    hint: str = ""
    placeholder: str = ""
    options: Sequence[str] = ()
    default: str = ""
    """The default value as JSON; the field is left out if it has this value and was not given."""
    empty: str = ""
    """What an empty field means: ``null``, ``text`` (an empty text), or nothing, which leaves it out."""
    minimum: float | None = None
    maximum: float | None = None
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class ArgumentsForm:
    """The fields of one object, which can also be edited as JSON."""

    name: str
    """Name of the object in the request, such as ``input``."""
    fields: Sequence[FormField]
    document: str
    """All values as JSON."""
    is_known: bool = True
    """False without a schema: the object is edited as JSON only."""


def make_arguments_form(name: str, schema: Mapping[str, Any] | None, values: Mapping[str, Any] | None) -> ArgumentsForm:
    """Return the form of an object; None as the schema if it is not known here."""
    given = dict(values or {})
    document = _pretty(given)
    if schema is None:
        return ArgumentsForm(name, (), document, is_known=False)
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = set(schema.get("required", ()))
    definitions = schema.get("$defs", {})
    fields = [
        make_field(each, _resolve(found, definitions), given, is_required=each in required)
        for each, found in properties.items()
    ]
    further = {each: value for each, value in given.items() if each not in properties}
    if further or schema.get("additionalProperties", False) not in (False, None):
        text = _pretty(further) if further else ""
        fields.append(FormField("", "Further arguments", "rest", text, hint="A JSON object.", is_given=bool(further)))
    return ArgumentsForm(name, fields, document)


def make_field(name: str, schema: Mapping[str, Any], given: Mapping[str, Any], *, is_required: bool) -> FormField:
    """Return the field of one property; ``given`` are the stored values of the object."""
    is_given = name in given
    value, default = given.get(name), schema.get("default")
    types, alternatives = _types(schema)
    options = [str(each) for each in schema.get("enum", ()) if isinstance(each, str)][:MAX_OPTIONS]
    kind = _choose_type(schema, types, value, has_alternatives=alternatives > 1, has_options=bool(options))
    has_default = "default" in schema and default is not None and default not in ("", [], {})
    empty = "text" if is_required and kind == "text" else ""
    if is_given and value in (None, ""):
        empty = "null" if value is None else "text"
    shown = default if kind == "checkbox" and not is_given else value
    return FormField(
        name=name,
        label=name.replace("_", " ").strip().capitalize() or name,
        type=kind,
        value=_text_of(kind, value),
        is_checked=shown is True,
        is_required=is_required,
        is_given=is_given,
        is_long=kind == "text"
        and (name in _LONG_NAMES or "\n" in str(value or "") or len(str(value or "")) > _LONG_TEXT_CHARACTERS),
        hint=one_line(schema.get("description", ""), 200),
        placeholder=one_line(_text_of(kind, default), 60) if has_default and kind != "checkbox" else "",
        options=options,
        default=json.dumps(default) if "default" in schema else "",
        empty=empty,
        minimum=_number(schema.get("minimum")),
        maximum=_number(schema.get("maximum")),
        is_whole=types == {"integer"},
    )


def _is_long(name: str, text: str) -> bool:
    return name in _LONG_NAMES or "\n" in text or len(text) > _LONG_TEXT_CHARACTERS


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) else None


def _resolve(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema without a reference at its top; the alternatives of a union are resolved too."""
    found = dict(schema)
    for _ in range(10):
        reference = str(found.pop("$ref", ""))
        if not reference:
            break
        found = {**definitions.get(reference.rpartition("/")[2], {}), **found}
    if "anyOf" in found:
        found["anyOf"] = [_resolve(each, definitions) for each in found["anyOf"]]
        simple = [each for each in found["anyOf"] if each.get("type") != "null"]
        if len(simple) == 1:
            found = {
                **simple[0],
                **{name: value for name, value in found.items() if name != "anyOf"},
                "anyOf": found["anyOf"],
            }
    if isinstance(found.get("items"), Mapping):
        found["items"] = _resolve(found["items"], definitions)
    if "const" in found and "enum" not in found:
        found["enum"] = [found["const"]]
    return found


def _types(schema: Mapping[str, Any]) -> tuple[set[str], int]:
    """Return the JSON types of a value other than null, and the number of alternatives."""
    alternatives = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    stated = [each.get("type", "object" if "properties" in each else "any") for each in alternatives or [schema]]
    types: set[str] = set()
    for each in stated:
        types |= set(each) if isinstance(each, list) else {str(each)}
    return types - {"null"}, max(len(alternatives), 1)


def _choose_type(
    schema: Mapping[str, Any], types: set[str], value: Any, *, has_alternatives: bool, has_options: bool
) -> str:
    """Return the simplest type that can show the schema and the present value.

    A text with control characters is shown as JSON: there they are visible, and the browser returns them unchanged.
    """
    if isinstance(value, str) and INVISIBLE_CHARACTERS.search(value):
        return "json"
    if has_options and (value is None or value in schema.get("enum", ())):
        return "text"
    if types == {"boolean"} and (value is None or isinstance(value, bool)):
        return "checkbox"
    if types and types <= {"integer", "number"} and (value is None or _is_number(value)):
        return "number"
    if types <= {"integer", "number", "string"} and len(types) > 1 and (value is None or _is_scalar(value)):
        return "scalar"
    if "string" in types and (value is None or isinstance(value, str)) and types <= {"string", "object"}:
        return "text"
    if types == {"array"} and not has_alternatives:
        return _list_type(schema.get("items", {}), value)
    return "json"


def _list_type(items: Any, value: Any) -> str:
    types, _ = _types(items) if isinstance(items, Mapping) else ({"any"}, 1)
    listed = value if isinstance(value, list) else []
    if types and types <= {"integer", "number"} and all(_is_number(each) for each in listed):
        return "numbers"
    if "string" in types and types <= {"string", "object"} and all(_is_line(each) for each in listed):
        return "lines"
    return "json"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_scalar(value: Any) -> bool:
    """Return whether the browser reads the text of a value as the same value."""
    return _is_number(value) or (isinstance(value, str) and not value.replace(".", "", 1).lstrip("-").isdigit())


def _is_line(value: Any) -> bool:
    if not isinstance(value, str) or INVISIBLE_CHARACTERS.search(value):
        return False
    return "\n" not in value and value.strip() == value and value != ""


def _text_of(kind: str, value: Any) -> str:
    if value is None:
        return ""
    match kind:
        case "checkbox":
            return ""
        case "json" | "rest":
            return _pretty(value)
        case "lines":
            return "\n".join(value)
        case "numbers" | "list":
            return ", ".join(str(each) for each in value)
        case _:
            return f"{value:g}" if isinstance(value, float) and value == int(value) else str(value)


def _pretty(value: Any) -> str:
    return escape_control_characters(json.dumps(value, ensure_ascii=False, indent=2, default=str))
