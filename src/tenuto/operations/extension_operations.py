"""The operations of extensions (``app.extensions.NAME``), created at first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenuto.errors import NotFound
from tenuto.extension import CallerOperations, Extension, ExtensionServices
from tenuto.extension.registry import ExtensionRegistry
from tenuto.model.access.operation_context import OperationCaller
from tenuto.operations.bound_operation import OperationGroup
from tenuto.postgres.database import Database


class UnknownExtension(NotFound, AttributeError):
    """There is no extension with this name, or it cannot be used."""


class ExtensionOperations:
    """``app.extensions``: an attribute for each extension that has operations."""

    def __init__(self, registry: ExtensionRegistry, create_services: Callable[[Extension], ExtensionServices]) -> None:
        self._registry = registry
        self._create_services = create_services
        self._operations: dict[str, CallerOperations] = {}
        self._caller: OperationCaller | None = None
        self._replica: Database | None = None

    def for_caller(self, caller: OperationCaller) -> ExtensionOperations:
        """Return the operations of the same extensions for another caller."""
        bound = ExtensionOperations(self._registry, self._create_services)
        bound._operations, bound._caller, bound._replica = self._operations, caller, self._replica
        return bound

    def reading_from(self, replica: Database) -> ExtensionOperations:
        """Return the operations of the same extensions, whose queries read from a read replica."""
        bound = ExtensionOperations(self._registry, self._create_services)
        bound._operations, bound._caller, bound._replica = self._operations, self._caller, replica
        return bound

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._operations:
            self._operations[name] = self._create(name)
        operations = self._operations[name]
        if self._caller is not None:
            operations = operations.for_caller(self._caller)
        if self._replica is not None and isinstance(operations, OperationGroup):
            return operations.reading_from(self._replica)
        return operations

    def __dir__(self) -> list[str]:
        return [extension.name for extension in self._registry.extensions]

    def _create(self, name: str) -> CallerOperations:
        extension = self._registry.find(name)
        if extension is None:
            failure = next((each for each in self._registry.failures if each.extension == name), None)
            if failure is not None:
                raise UnknownExtension(
                    f"the extension {name!r} cannot be used: {failure.problem}",
                    code="extension.failed",
                    remedy=failure.remedy,
                )
            known = ", ".join(each.name for each in self._registry.extensions) or "none"
            raise UnknownExtension(
                f"there is no extension named {name!r}; installed: {known}",
                code="extension.not_found",
                remedy="install it, or pass it to Tenuto(extensions=[…])",
            )
        operations = extension.operations(self._create_services(extension))
        if operations is None:
            raise UnknownExtension(f"the extension {name!r} has no operations", code="extension.no_operations")
        return operations
