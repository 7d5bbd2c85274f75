"""An extension whose pages and panels fail in every way; `broken_templates` has its templates."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tenuto.errors import EngineError, NotFound
from tenuto.extension import Extension, FoundObject, Page, PageAssets, PageRequest, Panel, SearchSource
from tenuto.model.access.actors import Role

THIS = "tests.web.broken_extension"


class Broken(Extension):
    name = "broken"
    requires_tenuto = ">=0.1,<1"

    def pages(self) -> Sequence[Page]:
        return [
            Page("", "Sound", f"{THIS}:load_nothing", "sound.html", navigation="Broken"),
            Page("raises", "Raises", f"{THIS}:load_and_raise", "sound.html", navigation="Broken"),
            Page("exits", "Exits", f"{THIS}:load_and_exit", "sound.html"),
            Page("hangs", "Hangs", f"{THIS}:load_forever", "sound.html"),
            Page("template", "Template", f"{THIS}:load_nothing", "undefined.html"),
            Page("syntax", "Syntax", f"{THIS}:load_nothing", "syntax.html"),
            Page("absent", "Absent", f"{THIS}:load_nothing", "absent.html"),
            Page("endless", "Endless", f"{THIS}:load_nothing", "endless.html"),
            Page("once", "Once", f"{THIS}:load_once", "call.html"),
            Page("slow", "Slow", f"{THIS}:load_slow", "call.html"),
            Page("long", "Long", f"{THIS}:load_nothing", "long.html"),
            Page("missing", "Missing", f"{THIS}:no_such_function", "sound.html"),
            Page("sync", "Sync", f"{THIS}:load_at_once", "sound.html"),
            Page("secret", "Secret", f"{THIS}:load_nothing", "sound.html", role=Role.ADMIN),
            Page("things/{name}", "Thing {name}", f"{THIS}:load_thing", "sound.html", query=["q"]),
            Page("inline", "Inline", f"{THIS}:load_nothing", "inline.html"),
        ]

    def panels(self) -> Sequence[Panel]:
        return [
            Panel("overview", "Sound panel", f"{THIS}:load_text", "panel.html", topics=["overview"]),
            Panel("overview", "Silent panel", f"{THIS}:load_nothing", "panel.html"),
            Panel("overview", "Raising panel", f"{THIS}:load_and_raise", "panel.html"),
            Panel("overview", "Hanging panel", f"{THIS}:load_forever", "panel.html"),
            Panel("overview", "Broken template", f"{THIS}:load_text", "undefined.html"),
            Panel("overview", "Admins only", f"{THIS}:load_text", "panel.html", role=Role.ADMIN),
            Panel("task", "About the task", f"{THIS}:load_subject", "panel.html"),
            Panel("execution", "About the execution", f"{THIS}:load_subject", "panel.html"),
            Panel("step:job", "About the step", f"{THIS}:load_subject", "panel.html"),
        ]

    def searches(self) -> Sequence[SearchSource]:
        return [SearchSource(f"{THIS}:find_elsewhere")]

    def page_assets(self) -> PageAssets:
        return PageAssets(Path(__file__).parent / "broken_templates")


async def load_nothing(request: PageRequest) -> None:
    return None


async def load_text(request: PageRequest) -> str:
    return "<b>all is well</b>"


async def load_subject(request: PageRequest) -> str:
    return f"subject {type(request.subject).__name__} for {request.role.key}"


async def load_thing(request: PageRequest) -> dict[str, Any]:
    if request.parameters["name"] == "none":
        raise NotFound("there is no thing none", code="broken.thing.not_found", remedy="look elsewhere")
    return {"name": request.parameters["name"], "query": dict(request.query)}


async def load_and_raise(request: PageRequest) -> None:
    raise RuntimeError("the wheel <came> off")


async def load_and_exit(request: PageRequest) -> None:
    raise SystemExit(3)


async def load_forever(request: PageRequest) -> None:
    await asyncio.Event().wait()


renderings: list[str] = []
"""Of the page `once`; its first one fails."""
slow_page_may_end = threading.Event()


async def load_once(request: PageRequest) -> Callable[[], str]:
    def render() -> str:
        renderings.append("once")
        if len(renderings) == 1:
            raise EngineError("the first one fails", code="broken.first")
        return "rendered again"

    return render


async def load_slow(request: PageRequest) -> Callable[[], str]:
    def render() -> str:
        slow_page_may_end.wait(60)
        return "rendered again"

    return render


def load_at_once(request: PageRequest) -> None:
    return None


async def find_elsewhere(request: PageRequest) -> list[FoundObject]:
    """The path belongs to Tenuto: refused."""
    return [FoundObject("thing", "thing", "/keys")]
