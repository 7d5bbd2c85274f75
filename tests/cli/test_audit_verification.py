"""``tenuto audit verify`` distinguishes a missing key from tampering."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenuto import Actor, Tenuto
from tenuto.audit.keys import load_audit_keys
from tenuto.audit.sealer import seal_entries
from tenuto.secret_encryption import MasterKey
from tests.cli.conftest import Shell


@pytest.fixture
async def sealed_log(app: Tenuto, tmp_path: Path) -> Path:
    """A log of three entries, sealed with a key; return the key file."""
    file = tmp_path / "master.key"
    file.write_text(f"{MasterKey.new().text}\n")
    file.chmod(0o600)
    app.settings = app.settings.model_copy(update={"master_key_file": file})
    for queue in ("a", "b", "c"):
        await app.acting_as(Actor.user("ana")).pause_queue(queue)
    await seal_entries(await app.open(), load_audit_keys(app.settings))
    return file


async def test_missing_key_is_not_reported_as_tampering(shell: Shell, app: Tenuto, sealed_log: Path) -> None:
    intact = shell("audit", "verify", TENUTO_MASTER_KEY_FILE=str(sealed_log))
    assert (intact.code, "sealed with the master key" in intact.err) == (0, True)
    missing = shell("audit", "verify")
    assert missing.code == 6
    assert "could not be checked, because its key is missing" in missing.err
    assert "no sign of tampering" in missing.err
    assert "altered" not in missing.err
    database = await app.open()
    await database.fetch_all("ALTER TABLE tenuto.audit DISABLE TRIGGER USER")
    await database.fetch_all("UPDATE tenuto.audit SET target = 'x' WHERE target = 'b'")
    altered = shell("audit", "verify", TENUTO_MASTER_KEY_FILE=str(sealed_log))
    assert (altered.code, "the audit log was altered" in altered.err) == (1, True)
