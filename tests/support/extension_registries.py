"""Extension registries for tests of Tenuto itself: without the extensions that are installed with it."""

from __future__ import annotations

from typing import Any

from tenuto.extension.registry import ExtensionRegistry


def make_registry(*given: Any, **options: Any) -> ExtensionRegistry:
    """Return a registry of the built-in and given extensions."""
    return ExtensionRegistry(*given, disabled=lambda: ("identity", "notifications"), **options)
