"""``tenuto secret``: values come in by stdin or a hidden prompt, and never out again."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from tenuto.secret_encryption import Key
from tests.cli.conftest import Shell

CANARY = "kanarie at the prompt"


def test_secrets_are_set_listed_rotated_and_deleted_and_never_shown(shell: Shell) -> None:
    old, new = Key.new(), Key.new()
    refused = shell("secret", "set", "hr", stdin=CANARY)
    assert refused.code == 2
    assert "master_key: secrets need a master key" in refused.err
    assert "TENUTO_MASTER_KEY_FILE" in refused.err
    ends = [
        shell("secret", "set", "hr", "-o", "json", stdin=f"{CANARY}\n", TENUTO_MASTER_KEY=old.text),
        shell("secret", "list"),
        shell("secret", "rotate", TENUTO_MASTER_KEY=f"{new.text} {old.text}"),
        shell("secret", "set", "hr", stdin=CANARY, TENUTO_MASTER_KEY=old.text),
        shell("secret", "delete", "hr", "-o", "json"),
        shell("secret", "set", "other", CANARY),
    ]
    assert [end.code for end in ends] == [0, 0, 0, 7, 0, 2], [end.err for end in ends]
    assert ends[0].json == {"name": "hr", "version": 1}
    assert ends[1].out.split()[5:7] == ["hr", "1"]
    assert "1 secrets were brought under" in ends[2].err
    assert f"sealed with the master key {new.id}" in ends[3].err
    for end in ends[:-1]:
        assert CANARY not in end.out + end.err
        assert not {old.text, new.text} & set((end.out + end.err).split())


def test_at_a_terminal_the_value_is_asked_for_twice_and_not_shown(shell: Shell) -> None:
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tenuto", "secret", "set", "hr"],
        cwd=shell.folder,
        env={**shell.environment, "TENUTO_MASTER_KEY": Key.new().text},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    seen = b""
    for question in (b"Value of hr", b"Once more"):
        while question not in seen:
            seen += os.read(keyboard, 1024)
        os.write(keyboard, CANARY.encode() + b"\n")
    while b"secret hr is set" not in seen:
        seen += os.read(keyboard, 1024)
    assert process.wait(timeout=60) == 0
    os.close(keyboard)
    assert CANARY.encode() not in seen
