"""Imports the object that ``--app module:object`` names, and explains why it cannot be imported."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tenuto.errors import Invalid, TenutoError

_FIELD = "--app"


def split_app_name(name: str) -> tuple[str, str]:
    """Return module and object of an app name."""
    module_name, colon, object_name = name.partition(":")
    if not (module_name and colon and object_name):
        problem, remedy = (
            f"--app {name!r} is not of the form MODULE:OBJECT",
            f"write it as {module_name or 'tasks'}:app",
        )
        raise Invalid(problem, code="cli.app.invalid_name", field=_FIELD, remedy=remedy)
    return module_name, object_name


def find_object(module: ModuleType, object_name: str) -> Any:
    """Return the object of a module; raise `AttributeError` if it has none of this name."""
    found: Any = module
    for part in object_name.split("."):
        found = getattr(found, part)
    return found


def import_app_module(name: str) -> ModuleType:
    """Import the module of an app. Modules in the current folder are found."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except TenutoError:
        raise  # for example two jobs with one name; it has its own remedy
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _import_failure(name, error) from error
        remedy = f"run the command in the folder of the module; the current folder is {here}"
        problem = f"there is no module named {name}"
        raise Invalid(problem, code="cli.app.module_not_found", field=_FIELD, remedy=remedy) from None
    except Exception as error:  # the imported code may raise anything
        raise _import_failure(name, error) from error


def _import_failure(name: str, error: Exception) -> Invalid:
    where = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<") and file != __file__ and "importlib" not in file:
            where = f" ({file}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return Invalid(
        f"importing {name} fails: {type(error).__name__}: {error}{where}",
        code="cli.app.import_failed",
        field=_FIELD,
        remedy=f"reproduce it with: python -c 'import {name}'",
    )
