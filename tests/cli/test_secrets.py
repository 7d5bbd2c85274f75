"""`tenuto secret`: values are read from stdin or a hidden prompt and never printed."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from tenuto.secret_encryption import MasterKey
from tests.cli.conftest import Shell

CANARY = "kanarie at the prompt"


def test_secret_set_list_rotate_and_delete_never_print_a_value(shell: Shell) -> None:
    old, new = MasterKey.new(), MasterKey.new()
    rejected = shell("secret", "set", "hr", stdin=CANARY)
    assert rejected.code == 2
    assert "TENUTO_MASTER_KEY_FILE" in rejected.err
    assert shell("secret", "rotate").err == "there is no master key; nothing to do\n"
    results = [
        shell("secret", "set", "hr", "-o", "json", stdin=f"{CANARY}\n", TENUTO_MASTER_KEY=old.text),
        shell("secret", "list"),
        shell("secret", "rotate", TENUTO_MASTER_KEY=f"{new.text} {old.text}"),
        shell("secret", "set", "hr", stdin=CANARY, TENUTO_MASTER_KEY=old.text),
        shell("secret", "delete", "hr", "-o", "json"),
        shell("secret", "set", "other", CANARY),
    ]
    assert [result.code for result in results] == [0, 0, 0, 7, 0, 2], [result.err for result in results]
    assert results[0].json == {"name": "hr", "version": 1}
    assert results[1].out.split()[5:7] == ["hr", "1"]
    assert "1 secret encrypted" in results[2].err
    assert new.id in results[3].err
    for result in results[:-1]:
        assert CANARY not in result.out + result.err
        assert not {old.text, new.text} & set((result.out + result.err).split())


def test_secret_set_prompts_twice_on_a_terminal_without_echo(shell: Shell) -> None:
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tenuto", "secret", "set", "hr"],
        cwd=shell.folder,
        env={**shell.environment, "TENUTO_MASTER_KEY": MasterKey.new().text},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    output = b""
    for question in (b"Value of hr", b"Repeat"):
        while question not in output:
            output += os.read(keyboard, 1024)
        os.write(keyboard, CANARY.encode() + b"\n")
    while b"secret hr set" not in output:
        output += os.read(keyboard, 1024)
    assert process.wait(timeout=60) == 0
    os.close(keyboard)
    assert CANARY.encode() not in output


def test_keys_are_listed_with_symbols_rotated_and_the_last_admin_is_protected(shell: Shell) -> None:
    first = shell("key", "add", "admin", "--role", "admin").out.strip()
    rotated = shell("key", "rotate", "admin")
    assert rotated.code == 0, rotated.err
    assert rotated.out.strip() not in ("", first)
    listed = shell("key", "list").out
    assert "● valid" in listed
    assert "⊘ revoked" in listed
    assert "?" not in listed
    refused = shell("key", "revoke", "admin")
    assert (refused.code, "is the last admin key" in refused.err) == (7, True)
    assert shell("key", "revoke", "admin", "--last-admin").code == 0
