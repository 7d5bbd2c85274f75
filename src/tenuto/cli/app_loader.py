"""From ``--app module:object`` to the app, with a plain word about whatever is in the way."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tenuto.app import Tenuto
from tenuto.errors import Invalid, TenutoError
from tenuto.settings import load as load_settings

_FIELD = "--app"


def load(named: str | None, database: str | None, home: str | None) -> Tenuto:
    """The app that was named, or one without jobs; what was said on the command line is stronger than what it says."""
    if named is None:
        return Tenuto(database, home=home)
    app = _find(named)
    if database is not None or home is not None:
        given = {"database": database, "home": home}
        said = app.settings.model_dump(exclude_unset=True)
        own = {field: value for field, value in said.items() if given.get(field) is None}
        app.settings = load_settings(**{**given, **own})
    return app


def _find(named: str) -> Tenuto:
    module_name, colon, object_name = named.partition(":")
    if not (module_name and colon and object_name):
        raise Invalid(
            f"{named!r} does not name an object in a module",
            field=_FIELD,
            remedy=f"write it as {module_name or 'tasks'}:app",
        )
    module = _import(module_name)
    found: Any = module
    for part in object_name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Invalid(
                f"module {module_name} has no {object_name!r}", field=_FIELD, remedy=_suggest(module)
            ) from None
    if not isinstance(found, Tenuto):
        raise Invalid(f"{named} is a {type(found).__name__}, not a Tenuto app", field=_FIELD, remedy=_suggest(module))
    return found


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except TenutoError:
        raise  # such as two jobs of one name: it says what to do itself
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _broken(name, error) from error
        raise Invalid(
            f"there is no module named {name}",
            field=_FIELD,
            remedy=f"run this in the folder that holds it; here is {here}",
        ) from None
    except Exception as error:  # this runs code of the user's: it may raise anything
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> Invalid:
    where = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<") and file != __file__ and "importlib" not in file:
            where = f" ({file}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return Invalid(
        f"importing {name} fails: {type(error).__name__}: {error}{where}",
        field=_FIELD,
        remedy=f"see it for yourself with: python -c 'import {name}'",
    )


def _suggest(module: ModuleType) -> str:
    apps = sorted(name for name, value in vars(module).items() if isinstance(value, Tenuto))
    if apps:
        return " or ".join(f"--app {module.__name__}:{name}" for name in apps)
    return f"{module.__name__} holds no Tenuto app: define one with `app = Tenuto()`"
