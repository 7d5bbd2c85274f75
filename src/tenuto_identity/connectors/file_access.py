"""The folders that connectors may read and write files in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tenuto_identity.connectors.contract import ConnectorError


def allowed_path(path: str, folders: Sequence[Path]) -> Path:
    """Return the real path of the file; refuse one outside of the allowed folders."""
    found = Path(path).expanduser()
    if not found.is_absolute() and folders:
        found = folders[0] / found
    real = found.resolve()
    # guard: identity.csv_allowed_folders
    if folders and not any(real.is_relative_to(folder.resolve()) for folder in folders):
        listed = ", ".join(str(folder) for folder in folders)
        raise ConnectorError(
            "not_allowed", f"{path} is outside of the folders that files may be in", remedy=f"they are {listed}"
        )
    return real
