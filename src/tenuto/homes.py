"""Where Tenuto keeps its files on this machine, and where its settings file lies.

Apart from the settings, because a health check needs to know no more than this and is asked every few seconds: nothing
heavy is imported here. The order of what counts is the settings' own: argument, environment, file, default.
"""

from __future__ import annotations

import os
from pathlib import Path

from tenuto.errors import Invalid


def home(given: str | None = None) -> Path:
    """The home that `Settings.home` would name."""
    named = given or next((value for name, value in os.environ.items() if name.upper() == "TENUTO_HOME"), None)
    if named is None and (file := settings_file()).is_file():
        named = _home_in(file)
    return absolute(default_home() if named is None else Path(named))


def default_home() -> Path:
    """Where data, locks and health files live: as root a folder any service account may pass through."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return Path("/var/lib/tenuto")
    import platformdirs

    return platformdirs.user_data_path("tenuto")


def settings_file() -> Path:
    """The settings file, whether it is there or not; one that was named must be."""
    named = os.environ.get("TENUTO_CONFIG")
    if named and not Path(named).is_file():
        raise Invalid(f"there is no file {named}", field="TENUTO_CONFIG", remedy="correct it, or leave it out")
    return Path(named or "tenuto.toml")


def absolute(path: Path) -> Path:
    """The same folder, whatever the working folder will be."""
    return path.expanduser().absolute()


def _home_in(file: Path) -> str | None:
    import tomllib

    try:
        found = tomllib.loads(file.read_text(encoding="utf-8")).get("home")
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"{file} is not TOML: {error}", field="TENUTO_CONFIG") from error
    if found is not None and not isinstance(found, str):
        raise Invalid("must be a path", field="home", remedy=f"see {file}")
    return found
