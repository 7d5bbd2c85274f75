"""Paths of the home directory and of the settings file.

This module is separate from `settings` because health checks run every few seconds and must start fast: it imports
nothing heavy. The precedence is the one of the settings: argument, environment, file, default.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tenuto.errors import Invalid, quoted


def find_home(explicit: str | None = None) -> Path:
    """Return the same home directory as `Settings.home`; empty values count as unset."""
    in_environment = (value for name, value in os.environ.items() if name.upper() == "TENUTO_HOME" and value)
    named = explicit or next(in_environment, None) or _read_home_setting()
    return expand_path(Path(named) if named else default_home())


def default_home() -> Path:
    """Return the default directory for data, locks and health files; for root, one that all accounts can traverse."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return Path("/var/lib/tenuto")
    import platformdirs  # here, because health checks must start fast and seldom need it

    return platformdirs.user_data_path("tenuto")


def settings_file_path() -> Path:
    """Return the path of the settings file, which may not exist."""
    return Path(os.environ.get("TENUTO_CONFIG") or "tenuto.toml")


def read_settings_file() -> dict[str, Any]:
    """Return the contents of the settings file, or {} if there is none. A file named by TENUTO_CONFIG must exist."""
    import tomllib  # here, because health checks must start fast and seldom need it

    file = settings_file_path()
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        if not os.environ.get("TENUTO_CONFIG"):
            return {}
        problem, remedy = f"the settings file {file} does not exist", "correct or unset TENUTO_CONFIG"
    except OSError as error:
        problem = f"the settings file {file} cannot be read: {error.strerror}"
        remedy = "make the file readable for this account, or name another one with TENUTO_CONFIG"
    except UnicodeDecodeError as error:
        problem = f"the settings file {file} is not UTF-8: {error.reason} at byte {error.start}"
        remedy = "save it as UTF-8"
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        problem, remedy = f"the settings file {file} is not valid TOML: {error}", "correct the file"
    raise Invalid(problem, code="settings.file.unreadable", field="TENUTO_CONFIG", remedy=remedy)


def expand_path(path: Path) -> Path:
    """Return an absolute path with ``~`` expanded."""
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise Invalid(
            f"cannot expand '{path}': no such user",
            code="settings.home.unknown_user",
            field="home",
            remedy="write an absolute path; see TENUTO_HOME",
        ) from None


def _read_home_setting() -> str | None:
    found = read_settings_file().get("home")
    if found is not None and not isinstance(found, str):
        raise Invalid(
            f"the setting 'home' must be a path, not {quoted(found)}",
            code="settings.value.invalid",
            field="home",
            remedy=f"see {settings_file_path()}",
        )
    return found
