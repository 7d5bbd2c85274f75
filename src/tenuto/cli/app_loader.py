"""Loads the app named with ``--app module:object``, and explains why an app cannot be loaded."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tenuto.app import Tenuto
from tenuto.errors import Invalid, TenutoError
from tenuto.settings import load_settings as load_settings

_FIELD = "--app"


def load_app(name: str | None, database: str | None, home: str | None, *, is_service: bool) -> Tenuto:
    """Return the named app, or one without jobs. Command line options override the settings of the app.

    An app without jobs does not know the extensions that another app gives in code, so their sections in the settings
    file are an error for services only.
    """
    if name is None:
        return Tenuto(database, home=home, allow_unknown_sections=not is_service)
    app = _resolve_app(name)
    if database is not None or home is not None:
        options = {"database": database, "home": home}
        set_by_app = app.settings.model_dump(exclude_unset=True)
        kept = {field: value for field, value in set_by_app.items() if options.get(field) is None}
        app.settings = load_settings(**{**options, **kept})
    return app


def _resolve_app(name: str) -> Tenuto:
    module_name, colon, object_name = name.partition(":")
    if not (module_name and colon and object_name):
        problem, remedy = (
            f"--app {name!r} is not of the form MODULE:OBJECT",
            f"write it as {module_name or 'tasks'}:app",
        )
        raise Invalid(problem, code="cli.app.invalid_name", field=_FIELD, remedy=remedy)
    module = _import_module(module_name)
    found: Any = module
    for part in object_name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            problem, remedy = f"module {module_name} has no object {object_name!r}", _suggest_apps(module)
            raise Invalid(problem, code="cli.app.object_not_found", field=_FIELD, remedy=remedy) from None
    if not isinstance(found, Tenuto):
        problem, remedy = f"{name} is of type {type(found).__name__}, not a Tenuto app", _suggest_apps(module)
        raise Invalid(problem, code="cli.app.not_an_app", field=_FIELD, remedy=remedy)
    return found


def _import_module(name: str) -> ModuleType:
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


def _suggest_apps(module: ModuleType) -> str:
    apps = sorted(name for name, value in vars(module).items() if isinstance(value, Tenuto))
    if apps:
        return " or ".join(f"--app {module.__name__}:{name}" for name in apps)
    return f"module {module.__name__} has no Tenuto app; define one with `app = Tenuto()`"
