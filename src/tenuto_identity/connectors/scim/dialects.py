"""How servers deviate from RFC 7644, as data: the form of the requests that they accept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class DialectName(StrEnum):
    """A known deviation."""

    STANDARD = "standard"
    """RFC 7644."""
    ENTRA = "entra"
    """Servers that are written for the requests of Microsoft Entra ID."""
    OKTA = "okta"
    """Servers that are written for the requests of Okta."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form of the requests that a server accepts."""

    capitalized_operations: bool = False
    """``Add``, ``Remove`` and ``Replace`` instead of ``add``, ``remove`` and ``replace``."""
    removes_by_value: bool = False
    """Values of a list are removed by ``{"op": "remove", "path": "members", "value": [{"value": ID}]}``, not by a
    filter in the path."""
    replaced_types: frozenset[str] = frozenset()
    """Names of the resource types that are updated by PUT, in lower case."""


DIALECTS: Final[Mapping[DialectName, Dialect]] = MappingProxyType(
    {
        DialectName.STANDARD: Dialect(),
        DialectName.ENTRA: Dialect(capitalized_operations=True, removes_by_value=True),
        DialectName.OKTA: Dialect(replaced_types=frozenset({"user"})),
    }
)
