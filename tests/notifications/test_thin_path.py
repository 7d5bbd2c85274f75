from __future__ import annotations

from tenuto import Step, Tenuto, manual
from tenuto.operations.definitions.schedules import schedule_definition
from tests.notifications.receivers import WebhookReceiver
from tests.support.waiting import eventually


async def test_failed_execution_leads_to_one_webhook(app: Tenuto, receiver: WebhookReceiver) -> None:
    @app.job(max_attempts=1)
    async def broken() -> None:
        raise ValueError("no space left")

    await app.schedules.create(schedule_definition("Nightly HR Sync", manual(), [Step.job(broken)]))
    await app.extensions.notifications.create(
        {"name": "failures", "event": "execution.failed", "channel": {"kind": "webhook", "url": receiver.url("/hook")}}
    )
    async with app.worker(), app.scheduler():
        run = await app.schedules.run("Nightly HR Sync")
        assert run.execution_id is not None
        assert (await app.executions.wait(run.execution_id, 30)).state == "failed"
        await eventually(lambda: receiver.requests, 15)
        (delivery,) = await eventually(
            lambda: app.extensions.notifications.deliveries(state="delivered"), 15, what="delivered"
        )
    (document,) = receiver.documents
    assert document["subject"] == "Nightly HR Sync failed"
    assert document["events"][0]["fields"]["id"] == str(run.execution_id)
    assert delivery.subject == "Nightly HR Sync failed"
