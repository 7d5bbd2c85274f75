"""Fixtures of the step kinds' tests: a harness without a database."""

from __future__ import annotations

from tests.jobs.conftest import harness

__all__ = ["harness"]
