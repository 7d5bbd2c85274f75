"""The page of the HTTP interface, made from its OpenAPI document: every operation, who may use it, what goes in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tenuto import Tenuto
from tenuto.api.application import create_api, openapi_document

HEAD = """# HTTP API

{made}
How to use it: [Use the HTTP API](../how-to/http-api.md). The same as an OpenAPI 3.1 document, for machines:
`GET /api/v1/openapi.json`.

- **Who**: every operation names the role it needs: `viewer`, `operator`, `editor`, `admin`; each may do what those
  before it may. The key goes into `Authorization: Bearer …`.
- **Errors** are `application/problem+json`: `type`, `title`, `status`, `detail`, `errors` (field and message),
  `remedy`, `request_id`. Beside what an operation says: 400 cannot be read, 401 no valid key, 403 the role does not
  reach so far, 404 no such thing, 409 the state of things does not allow it, 413 too large, 415 not JSON, 422 a value
  is not acceptable, 429 too often, 503 no database just now.
- **Lists** answer with `items` and `next`; `after=next` asks for what follows. `limit` is 500 at most.
- **Twice is once**: a POST with `Idempotency-Key` is done once, however often it is sent.
- **Definitions** carry an `ETag`; a change or deletion with `If-Match` is refused if somebody else was quicker.
- `X-Reason` says why; it is kept with the change and in the audit trail. `X-Request-Id` is taken over, and is in every
  answer.
- Instants are ISO 8601 with an offset, spans are seconds. A slash within a name is written `%2F`."""


def http_page(made: str) -> str:
    document: dict[str, Any] = openapi_document(create_api(Tenuto()))
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    lines = [HEAD.format(made=made)]
    for tag, operations in by_tag.items():
        lines += ["", f"## {tag[0].upper()}{tag[1:]}", "", "| | | needs |", "|---|---|---|"]
        lines += [
            f"| [`{method} {path}`](#{anchor(method, path)}) | {first_sentence(operation)} | {role(operation)} |"
            for method, path, operation in operations
        ]
        for method, path, operation in operations:
            lines += ["", *section(document, method, path, operation)]
    return "\n".join([*lines, ""])


def section(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### {method} {path}"
    yield ""
    yield described(operation)
    parameters = [each for each in operation.get("parameters", []) if each["in"] != "cookie"]
    body = operation.get("requestBody")
    if parameters:
        yield from ("", "| parameter | in | |", "|---|---|---|")
        for each in parameters:
            meaning = each.get("description", each["schema"].get("description", ""))
            yield f"| `{each['name']}` | {each['in']} | {cell(kind_of(each['schema']), meaning)} |"
    if body:
        yield from ("", *body_of(document, body))
    yield from answer_of(operation)


def body_of(document: dict[str, Any], body: dict[str, Any]) -> Iterator[str]:
    kind, content = next(iter(body["content"].items()))
    schema = resolved(document, content.get("schema", {}))
    if schema.get("properties"):
        needed = schema.get("required", [])
        yield from ("| field | |", "|---|---|")
        for name, field in schema["properties"].items():
            must = ", needed" if name in needed else ""
            yield f"| `{name}` | {cell(kind_of(field) + must, field.get('description', ''))} |"
    elif description := content.get("schema", {}).get("description") or body.get("description"):
        yield f"Body: {description}"
    example = content.get("example") or next(iter(schema.get("examples", [])), None)
    if example is not None:
        yield from ("", *block(example if isinstance(example, str) else as_json(example), kind))


def answer_of(operation: dict[str, Any]) -> Iterator[str]:
    responses: dict[str, dict[str, Any]] = operation["responses"]
    status = next(each for each in responses if each.startswith("2"))
    answer = responses[status]
    content = answer.get("content", {}).get("application/json", {})
    if "example" in content:
        yield from ("", f"Answers {status}:", "", *block(as_json(content["example"]), "application/json"))
    else:
        kinds = ", ".join(f"`{kind}`" for kind in answer.get("content", {}))
        yield from ("", f"Answers {status}" + (f", {kinds}." if kinds and status != "204" else "."))


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for part in (schema, *schema.get("anyOf", []), *schema.get("allOf", [])):
        if "$ref" in part:
            found: dict[str, Any] = document["components"]["schemas"][part["$ref"].rsplit("/", 1)[-1]]
            return found
    return schema


def kind_of(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "$ref" in schema:
        return "object"
    kinds = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    names = dict.fromkeys(str(each.get("format") or each.get("type", "any")) for each in kinds)
    default = schema.get("default")
    return " or ".join(names) + (f", `{json.dumps(default).strip(chr(34))}` unless said" if default is not None else "")


def cell(kind: str, meaning: str) -> str:
    return f"{kind}. {' '.join(meaning.split())}".replace("|", "\\|").rstrip()


def role(operation: dict[str, Any]) -> str:
    return str(operation.get("x-role", "open to all" if operation.get("security") == [] else "viewer"))


def first_sentence(operation: dict[str, Any]) -> str:
    return str(operation["summary"]).replace("|", "\\|")


def described(operation: dict[str, Any]) -> str:
    """Summary and description, which repeats the summary if there is nothing to add."""
    summary, description = f"{operation['summary']}.", operation.get("description", "")
    return summary if description == summary else f"{summary} {description}".rstrip()


def anchor(method: str, path: str) -> str:
    kept = "".join(letter for letter in f"{method} {path}".lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def block(text: str, kind: str) -> list[str]:
    return [f"```{'json' if kind == 'application/json' else ''}", *text.rstrip("\n").split("\n"), "```"]


def as_json(value: Any) -> str:
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= 116 else json.dumps(value, indent=2, ensure_ascii=False)
