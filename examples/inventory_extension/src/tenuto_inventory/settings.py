"""Settings: the table ``[inventory]`` of ``tenuto.toml`` and variables ``TENUTO_INVENTORY_…``."""

from __future__ import annotations

from pydantic import BaseModel, Field


class InventorySettings(BaseModel):
    max_order: int = Field(1000, ge=1)
    """Largest quantity of one order."""
    record_seconds: float = Field(3600, gt=0)
    """Interval between two records of all stock levels."""
