"""The viewer of a page: who it is, and the preferences in the cookies of the browser (zone, theme, density)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from fastapi import Request

from tenuto.model.access.actors import Role

ZONE_COOKIE, THEME_COOKIE, DENSITY_COOKIE = "tenuto_zone", "tenuto_theme", "tenuto_density"
THEMES = ("light", "dark")
DENSITIES = ("compact", "comfortable")


@dataclass(frozen=True, slots=True)
class Viewer:
    """Name, role and preferences of the person who looks at a page."""

    name: str
    role: Role
    zone_name: str = "UTC"
    theme: str = ""
    """``light``, ``dark``, or empty for the theme of the system."""
    density: str = "compact"
    has_zone: bool = True
    """False on the first visit: the browser then sets its own zone."""
    is_initial_key: bool = False
    """The viewer acts with the key of the first start, so the audit log names no person."""


def read_viewer(request: Request, name: str, role: Role, *, is_initial_key: bool = False) -> Viewer:
    """Return the viewer; unknown values of cookies are ignored."""
    cookies = request.cookies
    zone, theme = unquote(cookies.get(ZONE_COOKIE, "")), cookies.get(THEME_COOKIE, "")
    density = cookies.get(DENSITY_COOKIE, "")
    known = is_zone(zone)
    return Viewer(
        name,
        role,
        zone if known else "UTC",
        theme if theme in THEMES else "",
        density if density in DENSITIES else DENSITIES[0],
        has_zone=known,
        is_initial_key=is_initial_key,
    )


@lru_cache(maxsize=1000)
def is_zone(name: str) -> bool:
    """Return whether this is the name of a time zone."""
    if not name or len(name) > 60 or name.startswith(("/", ".")) or ".." in name:
        return False
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True
