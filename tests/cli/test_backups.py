"""``tenuto backup`` and ``tenuto restore``: the drill of the guide, on embedded databases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tenuto import Tenuto
from tests.cli.conftest import Shell
from tests.operations.test_backups import SECRET, add_jobs


@pytest.mark.slow
def test_drill_on_an_embedded_database(open_shell: Callable[..., Shell], embedded_home: Path, tmp_path: Path) -> None:
    """The drill of the guide: back up, rotate, lose the machine, restore, check."""
    shell = open_shell(TENUTO_HOME=str(embedded_home))
    assert shell("secret", "set", "hr-password", stdin=SECRET).code == 0
    shell("queue", "pause", "mail", "--reason", "maintenance")
    made = shell("backup", "one.backup")
    assert made.code == 0, made.err
    assert "one.backup written" in made.err
    rotated = shell("secret", "rotate")
    assert "1 secret encrypted with the current master key" in rotated.err
    assert "1 old key kept for earlier dumps" in rotated.err

    new_home = tmp_path / "new"
    new_home.mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:3]:
        parent.chmod(0o755)
    restored = shell("restore", "one.backup", "--home", str(new_home))
    assert restored.code == 0, restored.err
    assert "check it with: tenuto doctor; tenuto audit verify" in restored.err
    assert (new_home / "master.key").read_text() in (embedded_home / "master.key").read_text()
    verified = shell("audit", "verify", "--home", str(new_home), "-o", "json")
    assert all(fault["kind"] == "unsealed" for fault in verified.json["faults"])

    async def reveal() -> None:
        app = Tenuto(home=new_home)
        add_jobs(app)
        try:
            async with app.worker():
                record = await app.wait(await app.enqueue(app.jobs.get_job("show_secret")), timeout=60)
            assert record.output == len(SECRET)
            assert [queue.name for queue in await app.queues()] == ["mail"]
        finally:
            await app.close()

    asyncio.run(reveal())
    assert shell("restore", "one.backup", "--home", str(new_home)).code == 7
    assert shell("secret", "rotate", "--forget-old-keys").code == 0
    assert len((embedded_home / "master.key").read_text().split()) == 1
