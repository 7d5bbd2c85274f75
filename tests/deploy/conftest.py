"""Fixtures of the deployment tests."""

from __future__ import annotations

from tests.cli.conftest import open_shell, shell

__all__ = ["open_shell", "shell"]
