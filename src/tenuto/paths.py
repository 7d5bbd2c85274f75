"""Where Tenuto keeps its files on this machine, and where its settings file lies.

Apart from the settings, because a health check needs to know no more than this and is asked every few seconds: nothing
heavy is imported here. The order of what counts is the settings' own: argument, environment, file, default.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tenuto.errors import Invalid


def home(given: str | None = None) -> Path:
    """The home that `Settings.home` would name; as there, what is empty is not given."""
    in_environment = (value for name, value in os.environ.items() if name.upper() == "TENUTO_HOME" and value)
    named = given or next(in_environment, None) or _home_in_file()
    return absolute(Path(named) if named else default_home())


def default_home() -> Path:
    """Where data, locks and health files live: as root a folder any service account may pass through."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return Path("/var/lib/tenuto")
    import platformdirs

    return platformdirs.user_data_path("tenuto")


def settings_file() -> Path:
    """The settings file, whether it is there or not."""
    return Path(os.environ.get("TENUTO_CONFIG") or "tenuto.toml")


def settings_in_file() -> dict[str, Any]:
    """What the settings file says: nothing if there is none; but one that was named must be there."""
    import tomllib

    file = settings_file()
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        if not os.environ.get("TENUTO_CONFIG"):
            return {}
        what, remedy = f"there is no file {file}", "correct it, or leave it out"
    except OSError as error:
        what = f"{file} cannot be read: {error.strerror}"
        remedy = "let it be a file that this account may read, or name another one with TENUTO_CONFIG"
    except UnicodeDecodeError as error:
        what, remedy = f"{file} is not UTF-8: {error.reason} at byte {error.start}", "save it as UTF-8"
    except (ValueError, RecursionError) as error:  # of TOML, or of a number or a nesting beyond all bounds
        what, remedy = f"{file} is not TOML: {error}", "correct it there"
    raise Invalid(what, field="TENUTO_CONFIG", remedy=remedy)


def absolute(path: Path) -> Path:
    """The same folder, whatever the working folder will be."""
    try:
        return path.expanduser().absolute()
    except RuntimeError:  # of an account nobody knows
        raise Invalid(
            f"{path} begins with the folder of an account that there is not",
            field="home",
            remedy="write the whole path: see TENUTO_HOME",
        ) from None


def _home_in_file() -> str | None:
    found = settings_in_file().get("home")
    if found is not None and not isinstance(found, str):
        raise Invalid("must be a path", field="home", remedy=f"see {settings_file()}")
    return found
