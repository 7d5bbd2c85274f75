"""Settings of identity synchronisation: the table ``[identity]`` and variables ``TENUTO_IDENTITY_…``."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field


class IdentitySettings(BaseModel):
    folders: tuple[Path, ...] = ()
    """Folders that connectors may read and write files in, besides the setting ``files_directory``."""
    queue: str = "default"
    """Queue of run profile steps that name none. A separate worker for it keeps long runs from delaying other work."""
    sync_page: int = Field(2_000, ge=1, le=20_000)
    """Objects in one transaction of a sync."""
    housekeeping_seconds: float = Field(60.0, gt=0)
    """Interval at which a service looks for due deletions and re-evaluations."""
    deletions_per_cycle: int = Field(50, ge=1, le=10_000)
    """Metaverse objects that one cycle of housekeeping deletes."""
