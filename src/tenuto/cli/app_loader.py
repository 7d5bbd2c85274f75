"""Loads the app named with ``--app module:object``, and explains why an app cannot be loaded."""

from __future__ import annotations

from types import ModuleType

from tenuto.app import Tenuto
from tenuto.errors import Invalid
from tenuto.jobs.app_import import find_object, import_app_module, split_app_name
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
    module_name, object_name = split_app_name(name)
    module = import_app_module(module_name)
    try:
        found = find_object(module, object_name)
    except AttributeError:
        problem, remedy = f"module {module_name} has no object {object_name!r}", _suggest_apps(module)
        raise Invalid(problem, code="cli.app.object_not_found", field=_FIELD, remedy=remedy) from None
    if not isinstance(found, Tenuto):
        problem, remedy = f"{name} is of type {type(found).__name__}, not a Tenuto app", _suggest_apps(module)
        raise Invalid(problem, code="cli.app.not_an_app", field=_FIELD, remedy=remedy)
    return found


def _suggest_apps(module: ModuleType) -> str:
    apps = sorted(name for name, value in vars(module).items() if isinstance(value, Tenuto))
    if apps:
        return " or ".join(f"--app {module.__name__}:{name}" for name in apps)
    return f"module {module.__name__} has no Tenuto app; define one with `app = Tenuto()`"
