"""``/docs``: the routes of the API with their required roles, and one operation with examples for curl and Python."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.routing import iter_route_contexts

from tenuto.api.api_route import ApiRoute
from tenuto.api.openapi import openapi_document
from tenuto.errors import NotFound
from tenuto.web.page import PageRoute, PageView, Reader

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_METHODS_WITH_BODY = ("post", "put", "patch")
_PYTHON = """\
import json, os, urllib.request

request = urllib.request.Request({url}, method={method}, headers={{
    "Authorization": f"Bearer {{os.environ['TENUTO_KEY']}}",{content_type}
}}{data})
with urllib.request.urlopen(request) as response:
    print({read})
"""


@dataclass(frozen=True, slots=True)
class RouteRow:
    id: str
    method: str
    path: str
    summary: str
    role: str


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    place: str
    type: str
    is_required: bool
    description: str


@dataclass(frozen=True, slots=True)
class OperationReference:
    """One operation of the API."""

    method: str
    path: str
    summary: str
    description: str
    role: str
    parameters: Sequence[Parameter]
    body: str | None
    """Example of the request."""
    response: str | None
    """Example of the response."""
    problems: Sequence[tuple[str, str]]
    """Status and description of each problem."""
    curl: str
    python: str


@router.get("/docs")
async def show_api_reference(request: Request, call: Reader) -> Response:
    """Show all routes by tag."""
    rows: dict[str, list[RouteRow]] = {}
    for context in iter_route_contexts(request.app.routes):
        route = context.route
        if not isinstance(route, ApiRoute) or not route.include_in_schema:
            continue
        role = "none" if route.required_role is None else route.required_role.role.key
        for method in sorted((route.methods or set()) - {"HEAD"}):
            path = (context.path_format or route.path).replace(":name}", "}")
            tag = str(context.tags[0] if context.tags else "about")
            rows.setdefault(tag, []).append(RouteRow(route.operation_id or "", method, path, route.summary or "", role))
    return await PageView(request, call).render("pages/api_reference.html", rows, title="API", current="/docs")


@router.get("/docs/{operation}")
async def show_operation_reference(
    request: Request, call: Reader, operation: Annotated[str, Path(max_length=100)]
) -> Response:
    """Show one operation: parameters, examples, problems."""
    document = openapi_document(request.app)
    for path, methods in document["paths"].items():
        for method, found in methods.items():
            if found.get("operationId") == operation:
                address = f"{str(request.base_url).rstrip('/')}{path}"
                model = describe_operation(document, method, path, found, address)
                view = PageView(request, call)
                return await view.render("pages/operation_reference.html", model, title=model.summary, current="/docs")
    raise NotFound(f"there is no operation {operation!r}", code="page.not_found", remedy="open the list of operations")


def describe_operation(
    document: Mapping[str, Any], method: str, path: str, found: Mapping[str, Any], address: str
) -> OperationReference:
    """Return the reference of an operation of the OpenAPI document."""
    responses = found.get("responses", {})
    success: Mapping[str, Any] = next((each for status, each in responses.items() if status.startswith("2")), {})
    body = None
    if "requestBody" in found:
        body = _example(document, next(iter(found["requestBody"]["content"].values()), {}))
    has_json_body = body is not None and method in _METHODS_WITH_BODY
    compact = json.dumps(body, ensure_ascii=False) if has_json_body else ""
    curl = ["curl", "-H", '"Authorization: Bearer $TENUTO_KEY"']
    if method != "get":
        curl += ["-X", method.upper()]
    if has_json_body:
        curl += ["--json", shlex.quote(compact)]
    python = _PYTHON.format(
        url=json.dumps(address),
        method=json.dumps(method.upper()),
        content_type='\n    "Content-Type": "application/json",' if has_json_body else "",
        data=f", data=json.dumps({body!r}).encode()" if has_json_body else "",
        read="json.load(response)" if "application/json" in success.get("content", {}) else "response.read().decode()",
    )
    answer = success.get("content", {}).get("application/json")
    return OperationReference(
        method.upper(),
        path,
        found.get("summary", ""),
        found.get("description", ""),
        found.get("x-role", "none"),
        [_parameter(each) for each in found.get("parameters", ())],
        None if body is None else json.dumps(body, indent=2, ensure_ascii=False),
        None if answer is None else json.dumps(_example(document, answer), indent=2, ensure_ascii=False),
        [(status, each.get("description", "")) for status, each in responses.items() if not status.startswith("2")],
        " ".join([*curl, shlex.quote(address)]),
        python,
    )


def _parameter(found: Mapping[str, Any]) -> Parameter:
    schema = found.get("schema", {})
    types = [each.get("type", "") for each in schema.get("anyOf", (schema,)) if each.get("type") != "null"]
    described = found.get("description") or schema.get("description", "")
    return Parameter(
        found["name"], found["in"], " or ".join(filter(None, types)), found.get("required", False), described
    )


def _example(document: Mapping[str, Any], content: Mapping[str, Any]) -> Any:
    """Return the example of a content: its own, that of its schema, or the required fields."""
    if "example" in content:
        return content["example"]
    schema = content.get("schema", {})
    if "$ref" in schema:
        schema = document["components"]["schemas"].get(schema["$ref"].rpartition("/")[2], {})
    if "example" in schema:
        return schema["example"]
    if schema.get("examples"):
        return schema["examples"][0]
    fields = schema.get("properties", {})
    return {name: _placeholder(fields.get(name, {})) for name in schema.get("required", ())}


def _placeholder(schema: Mapping[str, Any]) -> Any:
    if schema.get("examples"):
        return schema["examples"][0]
    return {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}.get(str(schema.get("type")), "…")
