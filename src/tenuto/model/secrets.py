"""Secrets as definitions speak of them: by name, never by value.

A step says ``{"secret": "hr-api-token", "prefix": "Bearer "}`` where a text is wanted. The value is looked up when an
attempt begins, by the worker that runs it, and masked in whatever the attempt leaves behind.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class SecretRef(BaseModel):
    """A text that is kept elsewhere."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    secret: str = Field(min_length=1, max_length=200)
    """The name it is kept under."""
    prefix: str = Field(default="", max_length=200)
    """What goes before it, such as ``Bearer ``."""


Text = str | SecretRef
"""A text, given or kept as a secret."""
