"""Fixtures of the API tests."""

from __future__ import annotations

from tests.api.conftest import service

__all__ = ["service"]
