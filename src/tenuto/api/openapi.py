"""The OpenAPI document: descriptions of responses and problems in the routes, and the finished document.

A route gives an example of its response and the codes of its problems (`describe`); problems of all routes, such as
an invalid API key, are added from its declaration (`general_problems`). Examples may leave out fields: the document
completes them by the schema of the response.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tenuto.api.problems import MEDIA_TYPE, Problem
from tenuto.app import Tenuto
from tenuto.model.definitions.steps import JOB, SCHEDULE

Responses = dict[int | str, dict[str, Any]]
Codes = str | tuple[str, ...]

_PROBLEM_DESCRIPTIONS = {
    400: "The request cannot be parsed.",
    401: "The API key is missing or not valid.",
    403: "The caller's role is not sufficient.",
    404: "The object does not exist.",
    409: "The current state does not allow the operation.",
    413: "The body is too large.",
    415: "The media type of the body is not supported.",
    422: "A value is not acceptable.",
    429: "Too many requests.",
    503: "The database cannot be reached.",
}
_JSON_TYPES: Mapping[type, str] = {dict: "object", list: "array", str: "string"}
_LIST_SUFFIXES = {"Page": "Page", "Items": "List"}
_EXAMPLE_ID = "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1"
_EXAMPLE_INSTANT = "2031-05-04T02:00:00Z"


# --- descriptions in the routes ---------------------------------------------------------------------------------------


def describe(
    example: Any = None,
    status: int = 200,
    *,
    unauthorized: Codes = (),
    forbidden: Codes = (),
    not_found: Codes = (),
    conflict: Codes = (),
    invalid: Codes = (),
    limited: Codes = (),
) -> Responses:
    """Describe a route: an example of its response, and the codes of its problems by kind."""
    found: Responses = {}
    if example is not None:
        found[status] = {"content": {"application/json": {"example": example}}}
    kinds = {401: unauthorized, 403: forbidden, 404: not_found, 409: conflict, 422: invalid, 429: limited}
    return found | {each: _problem(each, codes) for each, codes in kinds.items() if codes}


def describe_page(item: Mapping[str, Any], *, not_found: Codes = (), invalid: Codes = ()) -> Responses:
    """Describe a route that returns a page, by an example of its items."""
    codes = ("request.cursor.invalid", *_as_tuple(invalid))
    return describe({"items": [item], "next": None}, not_found=not_found, invalid=codes)


def general_problems(*, has_role: bool, has_body: bool, is_idempotent: bool) -> Responses:
    """Describe the problems that follow from the declaration of a route.

    ``is_idempotent``: the route accepts an idempotency key.
    """
    found: Responses = {400: _problem(400, "request.path.nul")}
    found[422] = _problem(422, ("request.invalid", "request.parameter.unknown", "database.text.not_storable"))
    if has_role:
        found[400] = _problem(400, ("request.path.nul", "auth.header.duplicate"))
        found[401] = _problem(401, ("auth.missing", "auth.invalid"))
        found[403] = _problem(403, ("auth.role.insufficient", "auth.csrf"))
        found[429] = _problem(429, ("rate_limit.exceeded", "rate_limit.failed_authentications"))
        found[503] = _problem(503, ("database.connection_lost", "database.transient_error"))
    if has_body:
        body = ("request.json.invalid", "request.json.too_deep", "request.body.not_utf8")
        found = merge_responses(found, {400: _problem(400, body)})
        found[413] = _problem(413, "request.too_large")
        found[415] = _problem(415, "request.content_type.unsupported")
        found = merge_responses(found, {422: _problem(422, ("request.text.nul", "request.text.unpaired_surrogate"))})
    if is_idempotent:
        reused = ("request.idempotency_key.invalid", "request.idempotency_key.reused")
        found = merge_responses(found, {422: _problem(422, reused)})
        found = merge_responses(
            found, {409: _problem(409, ("request.idempotency_key.already_done", "request.idempotency_key.in_use"))}
        )
    return found


def merge_responses(first: Mapping[int | str, Any], second: Mapping[int | str, Any]) -> Responses:
    """Return both descriptions; the codes of the same status are united."""
    merged: Responses = {status: dict(response) for status, response in first.items()}
    for status, response in second.items():
        codes = (*merged.get(status, {}).get("x-codes", ()), *response.get("x-codes", ()))
        merged[status] = _problem(int(status), codes) if codes else {**merged.get(status, {}), **response}
    return dict(sorted(merged.items(), key=lambda each: str(each[0])))


def _problem(status: int, codes: Codes) -> dict[str, Any]:
    listed = list(dict.fromkeys(_as_tuple(codes)))
    return {
        "description": f"{_PROBLEM_DESCRIPTIONS[status]} Codes: {', '.join(f'`{code}`' for code in listed)}.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        "x-codes": listed,
    }


def _as_tuple(codes: Codes) -> tuple[str, ...]:
    return (codes,) if isinstance(codes, str) else codes


# --- the document -----------------------------------------------------------------------------------------------------


def openapi_document(api: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document."""
    if api.openapi_schema is None:
        document = get_openapi(
            title=api.title,
            version=api.version,
            summary=api.summary,
            routes=api.routes,
            openapi_version="3.1.0",
            servers=[{"url": "/"}],
        )
        components = document.setdefault("components", {})
        for model in (Problem, *api.state.described_models):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
            nested = schema.pop("$defs", {})
            components["schemas"] = {**nested, **components.get("schemas", {}), model.__name__: schema}
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        tenuto: Tenuto = api.state.tenuto
        schemas = tenuto.extension_registry.describe_step_kinds(tenuto.jobs, lambda _, job: job.input_schema())
        add_step_kinds(components["schemas"], schemas)
        document = _rename_lists(document)
        for operation in _operations(document):
            _simplify_optional_body(operation)
            _complete_examples(operation["responses"].values(), document["components"]["schemas"])
        api.openapi_schema = document
    return api.openapi_schema


def _operations(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in document["paths"].values():
        yield from methods.values()


def _simplify_optional_body(operation: dict[str, Any]) -> None:
    """Describe an optional body as one that may be left out, instead of one that may be null."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        alternatives = [each for each in content["schema"].get("anyOf", ()) if each != {"type": "null"}]
        if len(alternatives) == 1:
            content["schema"] = alternatives[0]


def _rename_lists(document: dict[str, Any]) -> dict[str, Any]:
    """Give lists readable names: ``TaskPage`` instead of ``Page_TaskRecord_``."""
    schemas = document["components"]["schemas"]
    names = {
        name: f"{match[2].removesuffix('Record')}{_LIST_SUFFIXES[match[1]]}"
        for name in schemas
        if (match := re.fullmatch(r"(Page|Items)_(\w+)_", name))
    }
    for old, new in names.items():
        schemas[new] = {**schemas.pop(old), "title": new}
    references = {f"#/components/schemas/{old}": f"#/components/schemas/{new}" for old, new in names.items()}
    renamed: dict[str, Any] = _rename_references(document, references)
    renamed["components"]["schemas"] = dict(sorted(renamed["components"]["schemas"].items()))
    return renamed


# --- step kinds -------------------------------------------------------------------------------------------------------


def add_step_kinds(schemas: dict[str, Any], argument_schemas: Mapping[str, dict[str, Any]]) -> None:
    """Describe the steps of each registered step kind, with the schema of its arguments, instead of any kind."""
    template = schemas.pop("KindStep")
    kinds = [each for each in schemas["Step"]["anyOf"] if not each["$ref"].endswith("/KindStep")]
    for kind, arguments in argument_schemas.items():
        if kind in (JOB, SCHEDULE):
            continue
        name = "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", kind))
        schemas[f"{name}Arguments"] = _hoist_definitions(schemas, name, arguments)
        properties = {
            **template["properties"],
            "kind": {"const": kind, "title": "Kind", "type": "string"},
            "arguments": {"$ref": f"#/components/schemas/{name}Arguments"},
        }
        required = ["kind", *(["arguments"] if arguments.get("required") else [])]
        schemas[f"{name}Step"] = {
            **template,
            "title": f"{name}Step",
            "description": f"A step of kind `{kind}`.",
            "properties": properties,
            "required": required,
        }
        kinds.append({"$ref": f"#/components/schemas/{name}Step"})
    schemas["Step"]["anyOf"] = kinds


def _hoist_definitions(schemas: dict[str, Any], name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Move the nested definitions of a schema to the components; those with another content get a longer name."""
    schema = copy.deepcopy(schema)
    references = {}
    for nested, content in schema.pop("$defs", {}).items():
        full_name = nested if schemas.get(nested, content) == content else f"{name}{nested}"
        schemas[full_name] = content
        references[f"#/$defs/{nested}"] = f"#/components/schemas/{full_name}"
    renamed: dict[str, Any] = _rename_references({**schema, "title": f"{name}Arguments"}, references)
    return renamed


def _rename_references(value: Any, references: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            name: references.get(each, each) if name == "$ref" else _rename_references(each, references)
            for name, each in value.items()
        }
    return [_rename_references(each, references) for each in value] if isinstance(value, list) else value


# --- examples ---------------------------------------------------------------------------------------------------------


def _complete_examples(responses: Iterable[dict[str, Any]], schemas: Mapping[str, Any]) -> None:
    for response in responses:
        for content in response.get("content", {}).values():
            if "example" in content and "schema" in content:
                content["example"] = complete_example(content["schema"], content["example"], schemas)


def complete_example(schema: Mapping[str, Any], given: Any, schemas: Mapping[str, Any]) -> Any:
    """Return the given example, with generated values for the required fields that it lacks."""
    schema = _resolve(schema, schemas, given)
    if isinstance(given, dict) and "properties" in schema:
        completed = {}
        for name, field in schema["properties"].items():
            if name in given:
                completed[name] = complete_example(field, given[name], schemas)
            elif name in schema.get("required", ()):
                completed[name] = _example_value(field, schemas)
        return completed | {name: value for name, value in given.items() if name not in completed}
    if isinstance(given, dict) and isinstance(schema.get("additionalProperties"), dict):
        return {name: complete_example(schema["additionalProperties"], each, schemas) for name, each in given.items()}
    if isinstance(given, list) and isinstance(schema.get("items"), dict):
        return [complete_example(schema["items"], each, schemas) for each in given]
    return copy.deepcopy(given)


def _resolve(schema: Mapping[str, Any], schemas: Mapping[str, Any], given: Any) -> Mapping[str, Any]:
    """Follow references; of alternatives, take the first that can have the type of the given value."""
    while "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    for alternative in schema.get("anyOf", schema.get("oneOf", ())):
        found = _resolve(alternative, schemas, given)
        if found.get("type") == _JSON_TYPES.get(type(given)):
            return found
    return schema


def _example_value(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    while "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    alternatives = schema.get("anyOf", ())
    if any(each.get("type") == "null" for each in alternatives) or not schema.keys() - {"title", "description"}:
        return None
    if alternatives:
        return _example_value(alternatives[0], schemas)
    for source in ("default", "const"):
        if source in schema:
            return schema[source]
    if "examples" in schema:
        return schema["examples"][0]
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        return complete_example(schema, {}, schemas)
    by_format = {"uuid": _EXAMPLE_ID, "date-time": _EXAMPLE_INSTANT}
    by_type = {"array": [], "integer": 0, "number": 0.0, "boolean": False, "string": "…"}
    return by_format.get(schema.get("format", ""), by_type.get(schema.get("type", "")))
