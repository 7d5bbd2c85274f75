"""The action that a route documents is the action that its operation records."""

from __future__ import annotations

from tenuto import Tenuto
from tenuto.api.application import create_api
from tenuto.api.openapi import openapi_document
from tenuto.operations.audit_actions import CORE_ACTIONS


def test_every_changing_route_documents_an_action_of_an_operation() -> None:
    app = Tenuto("postgresql://nowhere")
    actions = {action.name for action in [*CORE_ACTIONS, *app.extension_registry.audit_actions()]}
    documented = {
        (method, path): operation["x-action"]
        for path, methods in openapi_document(create_api(app))["paths"].items()
        for method, operation in methods.items()
        if method != "get" and "x-action" in operation
    }
    assert len(documented) > 30
    unknown = {route: action for route, action in documented.items() if action not in actions}
    assert {action.rpartition(".")[2] for action in unknown.values()} <= {"read"}, unknown
