"""The action that a route documents is the action that its operation records."""

from __future__ import annotations

import re
from pathlib import Path

import tenuto
from tenuto import Tenuto
from tenuto.api.application import create_api
from tenuto.api.openapi import openapi_document

OPERATIONS = Path(tenuto.__file__).parent / "operations"


def test_every_changing_route_documents_an_action_of_an_operation() -> None:
    sources = [module.read_text(encoding="utf-8") for module in OPERATIONS.glob("*.py")]
    actions = {action for source in sources for action in re.findall(r'"([a-z_]+\.[a-z_]+)"', source)}
    shared = {verb for source in sources for verb in re.findall(r'f"\{self\._definitions\.kind\}\.([a-z_]+)"', source)}
    verbs = shared | {"enable", "disable"}  # the operation chooses between these two
    actions |= {f"{kind}.{verb}" for kind in ("schedule", "manifest") for verb in verbs}
    documented = {
        (method, path): operation["x-action"]
        for path, methods in openapi_document(create_api(Tenuto("postgresql://nowhere")))["paths"].items()
        for method, operation in methods.items()
        if method != "get" and "x-action" in operation
    }
    assert len(documented) > 30
    unknown = {route: action for route, action in documented.items() if action not in actions}
    assert {action.rpartition(".")[2] for action in unknown.values()} <= {"read"}, unknown
