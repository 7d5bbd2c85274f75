"""``tenuto backup`` and ``tenuto restore``: the drill of the guide, on embedded databases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tenuto import Tenuto
from tenuto.cli.admin.backups import _read_passphrase
from tests.cli.conftest import Shell
from tests.operations.admin.test_backups import SECRET, add_jobs


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
    assert f"check it with: tenuto doctor --home {new_home}; tenuto audit verify --home {new_home}" in restored.err
    (entry, *_) = shell("audit", "list", "--home", str(new_home), "-o", "json").json
    assert (entry["action"], entry["target"], entry["source"]) == ("backup.restore", "one.backup", "cli")
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


def test_restore_of_a_wrong_file_creates_no_embedded_database(open_shell: Callable[..., Shell], tmp_path: Path) -> None:
    shell = open_shell(TENUTO_HOME=str(tmp_path / "home"))
    (shell.folder / "wrong.backup").write_text("something else")
    for file, message in (("wrong.backup", "is not a backup of Tenuto"), ("none.backup", "there is no file")):
        refused = shell("restore", file)
        assert (refused.code, message in refused.err) == (2, True)
    assert not (tmp_path / "home").exists()


def test_backup_is_encrypted_with_a_passphrase_file(shell: Shell, tmp_path: Path) -> None:
    passphrase = shell.folder / "passphrase"
    passphrase.write_text("five random words are enough\n")
    made = shell("backup", "one.backup", "--passphrase-file", "passphrase")
    assert made.code == 0, made.err
    assert "it is encrypted; keep the passphrase elsewhere" in made.err
    refused = shell("restore", "one.backup", "--replace")
    assert (refused.code, "--passphrase-file" in refused.err) == (2, True)
    refused = shell("restore", "one.backup", "--replace", "--passphrase-file", "-", stdin="another passphrase\n")
    assert "the passphrase is wrong" in refused.err
    restored = shell("restore", "one.backup", "--replace", "--passphrase-file", "passphrase")
    assert restored.code == 0, restored.err
    assert "check it with: tenuto doctor; tenuto audit verify" in restored.err
    assert shell("backup", "two.backup", "--passphrase-file", "none").code == 2
    passphrase.write_text("short\n")
    assert "fewer than 12" in shell("backup", "two.backup", "--passphrase-file", "passphrase").err


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\nsecond line\n"])
@pytest.mark.parametrize("inside", [" ", "\x0b", "\x0c", "\x1e", "\x85", "\u2028"])
def test_passphrase_is_the_whole_first_line(tmp_path: Path, inside: str, end: str) -> None:
    file = tmp_path / "passphrase"
    file.write_bytes(f"five random{inside}words{end}".encode())
    assert _read_passphrase(str(file)) == f"five random{inside}words"
