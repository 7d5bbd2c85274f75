"""Generates the HTTP API reference from the OpenAPI document: operations, roles, parameters, bodies, responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tenuto import Tenuto
from tenuto.api.application import create_api
from tenuto.api.openapi import openapi_document

HEAD = """# HTTP API

{header}
See [Use the HTTP API](../how-to/http-api.md). `GET /api/v1/openapi.json` returns the same reference as an OpenAPI 3.1
document.

- **Roles**: every operation names the role that it needs: `viewer`, `operator`, `editor`, `admin`. Each role includes
  the permissions of those before it. Send the API key in `Authorization: Bearer …`.
- **Errors** are `application/problem+json`: `type`, `title`, `status`, `code`, `detail`, `errors` (field and message),
  `remedy`, `request_id`. `code` is a stable [error code](errors.md). Any operation may return 400 (the request cannot
  be parsed), 401 (no valid key), 403 (the role is not sufficient), 404 (no such object), 409 (the current state does
  not allow it), 413 (too large), 415 (not JSON), 422 (a value is not acceptable), 429 (rate limit), 503 (the database
  cannot be reached).
- **Lists** return `items` and `next`; pass `after=next` for the next page. `limit` is at most 500.
- **Idempotency**: a POST with an `Idempotency-Key` has its effect once, however often it is sent.
- **Definitions** have an `ETag`. A change or deletion with `If-Match` is rejected if the definition has changed since.
- `X-Reason` is stored with the change and in the audit log. `X-Request-Id` is taken from the request and returned.
- Instants are ISO 8601 with a UTC offset, durations are seconds. Encode a slash in a name as `%2F`."""


def http_page(header: str) -> str:
    document: dict[str, Any] = openapi_document(create_api(Tenuto()))
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    lines = [HEAD.format(header=header)]
    for tag, operations in by_tag.items():
        lines += ["", f"## {tag[0].upper()}{tag[1:]}", "", "| operation | summary | role |", "|---|---|---|"]
        lines += [
            f"| [`{method} {path}`](#{anchor(method, path)}) | {escaped_summary(operation)} | {role(operation)} |"
            for method, path, operation in operations
        ]
        for method, path, operation in operations:
            lines += ["", *section(document, method, path, operation)]
    return "\n".join([*lines, ""])


def section(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### {method} {path}"
    yield ""
    yield summary_and_description(operation)
    parameters = [each for each in operation.get("parameters", []) if each["in"] != "cookie"]
    body = operation.get("requestBody")
    if parameters:
        yield from ("", "| parameter | in | meaning |", "|---|---|---|")
        for each in parameters:
            meaning = each.get("description", each["schema"].get("description", ""))
            yield f"| `{each['name']}` | {each['in']} | {cell(type_of(each['schema']), meaning)} |"
    if body:
        yield from ("", *body_lines(document, body))
    yield from response_lines(operation)


def body_lines(document: dict[str, Any], body: dict[str, Any]) -> Iterator[str]:
    kind, content = next(iter(body["content"].items()))
    schema = resolve_reference(document, content.get("schema", {}))
    if schema.get("properties"):
        required = schema.get("required", [])
        yield from ("| field | meaning |", "|---|---|")
        for name, field in schema["properties"].items():
            suffix = ", required" if name in required else ""
            yield f"| `{name}` | {cell(type_of(field) + suffix, field.get('description', ''))} |"
    elif description := content.get("schema", {}).get("description") or body.get("description"):
        yield f"Body: {description}"
    example = content.get("example") or next(iter(schema.get("examples", [])), None)
    if example is not None:
        yield from ("", *block(example if isinstance(example, str) else as_json(example), kind))


def response_lines(operation: dict[str, Any]) -> Iterator[str]:
    responses: dict[str, dict[str, Any]] = operation["responses"]
    status = next(each for each in responses if each.startswith("2"))
    response = responses[status]
    content = response.get("content", {}).get("application/json", {})
    if "example" in content:
        yield from ("", f"Response {status}:", "", *block(as_json(content["example"]), "application/json"))
    else:
        kinds = ", ".join(f"`{kind}`" for kind in response.get("content", {}))
        yield from ("", f"Response {status}" + (f", {kinds}." if kinds and status != "204" else "."))


def resolve_reference(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for part in (schema, *schema.get("anyOf", []), *schema.get("allOf", [])):
        if "$ref" in part:
            found: dict[str, Any] = document["components"]["schemas"][part["$ref"].rsplit("/", 1)[-1]]
            return found
    return schema


def type_of(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "$ref" in schema:
        return "object"
    kinds = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    names = dict.fromkeys(str(each.get("format") or each.get("type", "any")) for each in kinds)
    default = schema.get("default")
    return " or ".join(names) + (f", `{json.dumps(default).strip(chr(34))}` by default" if default is not None else "")


def cell(kind: str, meaning: str) -> str:
    return f"{kind}. {' '.join(meaning.split())}".replace("|", "\\|").rstrip()


def role(operation: dict[str, Any]) -> str:
    return str(operation.get("x-role", "none" if operation.get("security") == [] else "viewer"))


def escaped_summary(operation: dict[str, Any]) -> str:
    return str(operation["summary"]).replace("|", "\\|")


def summary_and_description(operation: dict[str, Any]) -> str:
    """Return summary and description; FastAPI repeats the summary if there is no description."""
    summary, description = f"{operation['summary']}.", operation.get("description", "")
    return summary if description == summary else f"{summary} {description}".rstrip()


def anchor(method: str, path: str) -> str:
    anchor_text = "".join(
        character for character in f"{method} {path}".lower() if character.isalnum() or character in " -_"
    )
    return anchor_text.replace(" ", "-")


def block(text: str, kind: str) -> list[str]:
    return [f"```{'json' if kind == 'application/json' else ''}", *text.rstrip("\n").split("\n"), "```"]


def as_json(value: Any) -> str:
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= 116 else json.dumps(value, indent=2, ensure_ascii=False)
