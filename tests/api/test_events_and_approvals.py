"""`/api/v1/events/…` and `/api/v1/approvals`: send, list, decide; roles, repeated requests and links."""

from __future__ import annotations

from tenuto import Step, manual
from tenuto.model.access.actors import Role
from tenuto.operations.definitions.schedules import schedule_definition
from tests.api.conftest import ApiClient, assert_problem
from tests.support.waiting import eventually


async def test_event_routes_send_once_and_list(service: ApiClient) -> None:
    body = {"payload": {"amount": 1}, "key": "order-17"}
    assert_problem(await service.post("/api/v1/events/paid", role=Role.VIEWER, json=body), 403)
    sent = [
        await service.post("/api/v1/events/paid", role=Role.OPERATOR, json=body, headers={"Idempotency-Key": "a"})
        for _ in range(2)
    ]
    assert [each.status_code for each in sent] == [202, 202], sent[0].text
    assert sent[0].json()["id"] == sent[1].json()["id"]
    assert (await service.post("/api/v1/events/paid", json={**body, "id": "evt_1"})).status_code == 202
    other = await service.post("/api/v1/events/paid", json={"payload": 2, "id": "evt_1"})
    assert_problem(other, 409, "event.id.reused")
    assert_problem(await service.post("/api/v1/events/tenuto.x", json={}), 422, "event.name.reserved")
    listed = (await service.get_json("/api/v1/events/sent?name=paid&delivered=false&limit=1"))["items"]
    assert [each["key"] for each in listed] == ["order-17"]
    assert (await service.get_json(f"/api/v1/events/sent/{sent[0].json()['id']}"))["payload"] == {"amount": 1}
    assert (await service.get_json("/api/v1/events/waits"))["items"] == []
    actions = [each["action"] for each in (await service.get_json("/api/v1/audit?limit=10"))["items"]]
    assert actions.count("event.send") == 2


async def test_approval_routes_decide_with_the_role_of_the_caller(service: ApiClient) -> None:
    gate = Step.approval("Go?", approvers=["viewer"], role="editor", count=2)
    await service.app.schedules.apply([schedule_definition("release", manual(), [gate])])
    async with service.app.worker():
        await service.app.schedules.run("release")
        approval = await eventually(lambda: _find_pending(service))
        path = f"/api/v1/approvals/{approval['id']}"
        assert_problem(await service.post(f"{path}/approve", role=Role.OPERATOR), 403, "approval.not_an_approver")
        first = await service.post(f"{path}/approve", role=Role.VIEWER, json={"reason": "tested"})
        assert [each["reason"] for each in first.json()["decisions"]] == ["tested"]
        assert_problem(await service.post(f"{path}/links", role=Role.EDITOR, json={"person": "viewer"}), 403)
        refused = await service.post(f"{path}/links", json={"person": "nobody"})
        assert_problem(refused, 422, "approval.link.not_an_approver")
        for base_url, prefix in ((None, None), ("https://tenuto.example.org/ops", "https://tenuto.example.org/ops")):
            service.app.settings = service.app.settings.model_copy(update={"base_url": base_url})
            link = (await service.post(f"{path}/links", json={"person": "viewer"})).json()
            assert link["url"] == (prefix and prefix + link["path"])
        second = await service.post(f"{path}/approve", role=Role.EDITOR)
        assert second.json()["state"] == "approved"
        assert_problem(await service.post(f"{path}/reject"), 409, "approval.not_pending")
    assert (await service.get_json("/api/v1/approvals?state=pending"))["items"] == []


async def _find_pending(service: ApiClient) -> dict[str, object] | None:
    found = (await service.get_json("/api/v1/approvals?state=pending"))["items"]
    return found[0] if found else None
