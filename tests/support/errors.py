"""Assertions about errors: tests match the stable code, never the wording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tenuto.errors import TenutoError


@contextmanager
def raises_code(code: str, kind: type[TenutoError] = TenutoError) -> Iterator[pytest.ExceptionInfo[TenutoError]]:
    """Expect a Tenuto error with this code."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, f"expected {code}, got {caught.value.code}: {caught.value}"
