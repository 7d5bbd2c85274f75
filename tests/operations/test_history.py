"""The history of one object: who changed it, when and why, without addresses, values and secrets."""

from __future__ import annotations

from pathlib import Path

from tenuto import Actor, Tenuto
from tenuto.settings import load_settings
from tests.support.errors import raises_code

ANA = Actor.user("u-1", "ana")


async def test_history_lists_changes_of_one_object_with_their_reasons(app: Tenuto) -> None:
    acting = app.acting_as(ANA, source="10.0.0.1")
    await acting.pause_queue("mail", "server down")
    await acting.resume_queue("mail")
    await acting.pause_queue("other")
    newest, oldest = await app.audit.history("queue:mail")
    assert (oldest.actor_name, oldest.action, oldest.reason) == ("ana", "queue.pause", "server down")
    assert newest.action == "queue.resume"
    assert not hasattr(oldest, "source")
    assert [entry.id for entry in await app.audit.history("queue:mail", below=newest.id)] == [oldest.id]


async def test_history_contains_only_changes_of_the_named_kind(url: str, tmp_path: Path) -> None:
    settings = load_settings(database=url, home=tmp_path, master_key="A" * 43 + "=")
    async with Tenuto(settings=settings) as app:
        acting = app.acting_as(ANA)
        await acting.secrets.set("mail", "s3cret")
        await acting.pause_queue("mail")
        assert [entry.action for entry in await app.audit.history("queue:mail")] == ["queue.pause"]


async def test_history_of_objects_of_administrators_is_rejected(app: Tenuto) -> None:
    for target in ("secret:mail", "key:ci", "session:1", "mail", "", "queue"):
        with raises_code("history.target.invalid"):
            await app.audit.history(target)
    with raises_code("value.label.invalid"):
        await app.audit.history("queue:")
