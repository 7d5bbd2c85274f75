"""Rendering of pages: whole, or only the parts that a live page asks for with the header ``Tenuto-Parts``.

A part is a block of the template whose only element has the attribute ``data-part`` with the name of the block. Both
ways render the same bytes for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from keyword import iskeyword
from pathlib import Path
from types import CodeType
from typing import Any

from fastapi import Response
from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined, Template, nodes
from jinja2.bccache import Bucket
from jinja2.compiler import CodeGenerator, Frame
from jinja2.loaders import BaseLoader, ChoiceLoader, PrefixLoader

from tenuto.web.components.html_templates import to_html

TEMPLATES = Path(__file__).parent / "templates"
LAYOUT = "layout.html"
PARTS_HEADER = "Tenuto-Parts"
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


class _PageCodeGenerator(CodeGenerator):
    """Compiles templates to shorter ways: a third of the time of a list was spent on calls and escaping as Jinja makes
    them (benchmark `dashboard`).

    Methods of these objects are called directly: Jinja looks at each call whether the function takes the context of the
    template, and copies the local variables for it. Values are escaped by `to_html`. A block or an included template
    collects its pieces in a list and yields them as one text: as a generator, every piece of a row would pass through
    the generators of all blocks around it.
    """

    OBJECTS = ("ui", "links")
    _is_extending = False

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802
        self._is_extending = node.find(nodes.Extends) is not None
        super().visit_Template(node, frame)

    def blockvisit(self, body: Iterable[nodes.Node], frame: Frame) -> None:
        is_whole_body = frame.block_frame or (frame.rootlevel and not self._is_extending)
        if not is_whole_body or frame.buffer is not None:
            super().blockvisit(body, frame)
            return
        self.buffer(frame)
        super().blockvisit(body, frame)
        self.writeline(f"yield concat({frame.buffer})")

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802
        target = node.node
        if (
            forward_caller
            or not (isinstance(target, nodes.Getattr) and isinstance(target.node, nodes.Name))
            or target.node.name not in self.OBJECTS
            or node.dyn_args is not None
            or node.dyn_kwargs is not None
            or any(iskeyword(each.key) for each in node.kwargs)
        ):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.visit(target.node, frame)
        self.write(f".{target.attr}(")
        for each in (*node.args, *node.kwargs):
            self.visit(each, frame)
            self.write(", ")
        self.write(")")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.eval_ctx.volatile or not frame.eval_ctx.autoescape or finalize.src is not None:
            super()._output_child_pre(node, frame, finalize)
        else:
            self.write("environment.to_html(")


class PageEnvironment(Environment):
    """The environment of the templates of pages."""

    code_generator_class: type[CodeGenerator] = _PageCodeGenerator
    to_html = staticmethod(to_html)


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
    environment = PageEnvironment(
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


def list_parts(environment: Environment, template: Template, names: Sequence[str]) -> list[str]:
    """Return the names that are blocks of a template or of the layout."""
    known = {*template.blocks, *environment.get_template(LAYOUT).blocks}
    return [name for name in names if name in known]


def render_part(environment: Environment, template: Template, name: str, context: dict[str, Any]) -> str:
    """Render only this block of a template or of the layout."""
    rendering = template.new_context(context)
    if template.name != LAYOUT:
        for each, block in environment.get_template(LAYOUT).blocks.items():
            rendering.blocks.setdefault(each, []).append(block)
    return "".join(rendering.blocks[name][0](rendering)).strip()


def html_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a page with the headers of all pages."""
    all_headers = {**HEADERS, "Content-Type": "text/html; charset=utf-8", **(headers or {})}
    return Response(body, status, headers=all_headers)
