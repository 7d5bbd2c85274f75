"""Rendering of pages: whole, or only the parts that a live page asks for with the header ``Tenuto-Parts``.

A part is a block of the template whose only element has the attribute ``data-part`` with the name of the block. Both
ways render the same bytes for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from fastapi import Response
from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined, Template
from jinja2.bccache import Bucket
from jinja2.loaders import BaseLoader, ChoiceLoader, PrefixLoader

TEMPLATES = Path(__file__).parent / "templates"
LAYOUT = "layout.html"
PARTS_HEADER = "Tenuto-Parts"
MAX_AGE_HEADER = "Tenuto-Max-Age"
"""Milliseconds since the live page learned of the last change: older models do not show it."""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types tenuto"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cache-Control": "no-store",
    # With no-referrer, a browser would omit the Origin header of a form, which the CSRF check needs.
    "Referrer-Policy": "same-origin",
}
_PASSING_TIME = re.compile(
    rb"(?P<keep><(?:time|span)[^>]* data-(?:age|since|until)[^>]*>)[^<]*|(?P<grow> data-grow)[^>]*"
)
"""What changes with time alone: texts that the browser updates, and attributes after ``data-grow``."""


class _CompiledTemplates(BytecodeCache):
    """Keeps compiled templates of all environments of the process: each is compiled once, in half a second together."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code is not None:
            self._codes[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _CompiledTemplates()


def create_environment(extensions: Mapping[str, Path] | None = None, *, reload: bool = False) -> Environment:
    """Return the template environment; templates of extensions are named ``EXTENSION/NAME``."""
    loaders: list[BaseLoader] = [FileSystemLoader(TEMPLATES)]
    if extensions:
        loaders.append(PrefixLoader({name: FileSystemLoader(folder) for name, folder in extensions.items()}))
    environment = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=reload,
        cache_size=-1,
        bytecode_cache=_COMPILED,
    )
    environment.globals["code_version"] = None  # set by pages in development
    return environment


def compile_templates(environment: Environment) -> None:
    """Compile the templates of the dashboard, so that the first request for a page does not wait for it.

    Those of extensions are compiled when they are used: a broken one is an error of its page alone. So are all of them
    while they are edited.
    """
    if environment.auto_reload:
        return
    for path in sorted(TEMPLATES.rglob("*.html")):
        environment.get_template(path.relative_to(TEMPLATES).as_posix())


def render_parts(environment: Environment, template: Template, names: Sequence[str], context: dict[str, Any]) -> str:
    """Render only these blocks of a template; unknown names are left out."""
    rendering = template.new_context(context)
    if template.name != LAYOUT:
        for name, block in environment.get_template(LAYOUT).blocks.items():
            rendering.blocks.setdefault(name, []).append(block)
    return "\n".join(
        "".join(rendering.blocks[name][0](rendering)).strip() for name in names if name in rendering.blocks
    )


def entity_tag(body: bytes) -> str:
    """Return the tag of a rendering, which does not change with time alone."""
    stable = _PASSING_TIME.sub(lambda found: found["keep"] or found["grow"], body)
    return f'"{hashlib.sha256(stable).hexdigest()[:32]}"'


def html_response(
    body: bytes, status: int = 200, headers: Mapping[str, str] | None = None, tag: str | None = None
) -> Response:
    """Return a page with the headers of all pages."""
    all_headers = {**HEADERS, "Content-Type": "text/html; charset=utf-8", **(headers or {})}
    if tag is not None:
        all_headers["ETag"] = tag
    return Response(body, status, headers=all_headers)
