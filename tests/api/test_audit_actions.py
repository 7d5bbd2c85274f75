"""The action that a route documents is the action that its operation records.

The test client compares both for every request (`check_audited_action_is_documented`).
"""

from __future__ import annotations

import httpx2
import pytest

from tenuto import Tenuto
from tenuto.api.application import create_api
from tenuto.api.openapi import openapi_document
from tenuto.audit.actions import CORE_ACTIONS
from tests.api.conftest import HOST, ApiClient, find_route


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


async def test_client_finds_a_route_with_a_wrong_action(service: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await service.post("/api/v1/queues/mail/pause")
    route = find_route(service.api, httpx2.Request("POST", f"{HOST}/api/v1/queues/mail/resume"))
    assert route is not None
    assert route.required_role is not None
    monkeypatch.setattr(route.required_role, "action", "queue.pause")
    with pytest.raises(AssertionError, match=r"documents the action queue\.pause, but wrote \{'queue\.resume'\}"):
        await service.post("/api/v1/queues/mail/resume")
