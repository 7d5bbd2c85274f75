"""Kinds of connectors: the built-in ones, and those that other packages register by an entry point.

A package registers a connector by the entry point group ``tenuto_identity.connectors``. The name of the entry point is
the name of the connector, its value is a `ConnectorKind`.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from pydantic import BaseModel, ValidationError

from tenuto.errors import Invalid, quoted
from tenuto_identity.connectors.contract import Connector, ConnectorContext, ConnectorKind, SecretName
from tenuto_identity.connectors.csv_file import CSV
from tenuto_identity.connectors.ldap.connector import LDAP
from tenuto_identity.connectors.memory import MEMORY
from tenuto_identity.connectors.scim.connector import SCIM
from tenuto_identity.connectors.sql.connector import SQL
from tenuto_identity.model.definitions.definition_reader import suggestion

GROUP = "tenuto_identity.connectors"
_BUILT_IN = {kind.name: kind for kind in (CSV, LDAP, MEMORY, SCIM, SQL)}


@cache
def _registered() -> dict[str, ConnectorKind]:
    found: dict[str, ConnectorKind] = {}
    for entry in entry_points(group=GROUP):
        kind = entry.load()
        if not isinstance(kind, ConnectorKind) or kind.name != entry.name or kind.name in _BUILT_IN:
            raise Invalid(
                f"the entry point {entry.name} of {GROUP} is not a connector kind of this name",
                code="identity.connector.entry_point_invalid",
                remedy="let it name a ConnectorKind with the same name, different from the built-in ones",
            )
        found[kind.name] = kind
    return found


def connector_names() -> list[str]:
    """Return the names of all kinds of connectors."""
    return sorted({**_BUILT_IN, **_registered()})


def find_connector(name: str) -> ConnectorKind:
    """Return a kind of connector; raise `Invalid` with a suggestion."""
    kind = _BUILT_IN.get(name) or _registered().get(name)
    if kind is None:
        raise Invalid(
            f"there is no connector {quoted(name)}",
            code="identity.connector.unknown",
            field="connector",
            remedy=suggestion(name, connector_names()),
        )
    return kind


def parse_settings(kind: ConnectorKind, settings: Any) -> BaseModel:
    """Return the checked settings of a system; raise `Invalid` that names the setting."""
    try:
        return kind.settings.model_validate(settings)
    except ValidationError as problem:
        first = problem.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        message = f"the setting {name or 'settings'} of the connector {kind.name} is not valid: {first['msg']}"
        remedy = None
        if first["type"] == "extra_forbidden":
            message = f"the connector {kind.name} has no setting {name}"
            remedy = suggestion(name, list(kind.settings.model_fields))
        elif first.get("ctx", {}).get("class_name") == SecretName.__name__:
            message = f"the setting {name} of the connector {kind.name} takes the name of a secret, not its value"
            remedy = "write {secret: NAME}, and store the value with `tenuto secret set NAME`"
        raise Invalid(
            message,
            code="identity.connector.setting_invalid",
            field=f"settings.{name}" if name else "settings",
            remedy=remedy,
        ) from None


def open_connector(name: str, settings: Any, context: ConnectorContext) -> Connector:
    """Return a connector for one run; raise `Invalid` if the settings are not valid."""
    kind = find_connector(name)
    return kind.open(parse_settings(kind, settings), context)
