"""A reader of a page about identity synchronisation: writes its files, types its commands and compares the output.

A block after a text that ends with ``Write `NAME`:`` is the file NAME. In a console block, the lines after a command
are lines of its output, in order; ``…`` stands for any text.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.docs.pages import Block, parts
from tests.docs.test_examples import isolated_environment
from tests.support import warm_process
from tests.support.waiting import eventually_blocking

SETUP_COMMANDS = ("scripts/setup", ". .venv/bin/activate", "export ")
"""Commands that prepare the environment; `PageSession` does it here."""
SERVICE = "tenuto up"
TIMEOUT_SECONDS = 60.0
_SERVER = re.compile(r"slapd .* -h (ldap://\S+)")
FILE_NAME = re.compile(r"(?:Write|file) `([\w./-]+)`[^`\n]*:\s*$")


def wait_for_server(url: str) -> None:
    """Wait until a server listens: slapd goes into the background slightly before."""
    address = urlsplit(url)

    def is_listening() -> bool:
        with suppress(OSError):
            socket.create_connection((address.hostname, address.port or 389), 1).close()
            return True
        return False

    eventually_blocking(is_listening, timeout=20)


class PageSession:
    """The terminals of a reader."""

    def __init__(
        self,
        folder: Path,
        database: str,
        replaced: Mapping[str, str] | None = None,
        typed: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._replaced = replaced or {}
        """Text of the page → text that is used instead, such as a free port."""
        self._typed = typed or {}
        """Command → what the reader types at its prompt."""
        self.environment = {**isolated_environment(folder), "TENUTO_DATABASE": database}
        self.environment["TENUTO_DISABLED_EXTENSIONS"] = "notifications"
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment["TENUTO_MASTER_KEY_FILE"] = str(self._create_key())
        self._service: warm_process.Process | None = None
        self.failures: list[str] = []
        """Commands that ended with an exit code other than 0."""

    def follow(self, page: Path) -> None:
        """Do everything that a page says, in order."""
        before = ""
        for part in parts(page):
            if isinstance(part, str):
                before = part
            elif part.reason is not None:
                continue
            elif part.language == "console":
                self._run_block(part)
            elif found := FILE_NAME.search(before):
                path = self.folder / found[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self._local(part.text), encoding="utf-8")

    def run(self, line: str) -> str:
        """Run one command; return what it prints on both streams."""
        line = self._local(line)
        if line.startswith(SETUP_COMMANDS):
            return ""
        if line == SERVICE:
            self.start_service()
            return ""
        if line.startswith("tenuto ") and not set("|><$") & set(line):
            done = warm_process.run(
                ["-m", *shlex.split(line)],
                cwd=self.folder,
                env=self.environment,
                input=self._typed.get(line, ""),
                timeout=TIMEOUT_SECONDS,
            )
            code, output = done.returncode, done.stdout + done.stderr
        else:
            ended = subprocess.run(
                ["bash", "-c", line],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
            code, output = ended.returncode, ended.stdout + ended.stderr
        if code:
            self.failures.append(line)
        elif started := _SERVER.search(line):
            wait_for_server(started[1])
        return output

    def start_service(self) -> None:
        log = self.folder / "up.log"
        with log.open("w", encoding="utf-8") as file:
            self._service = warm_process.start(
                ["-m", *shlex.split(SERVICE), "--no-web"],
                cwd=self.folder,
                env=self.environment,
                stdout=file.fileno(),
                stderr=file.fileno(),
            )
        service = self._service
        eventually_blocking(
            lambda: "worker started" in log.read_text(encoding="utf-8") or service.poll(), timeout=TIMEOUT_SECONDS
        )

    def close(self) -> None:
        """Stop the service as Ctrl-C does."""
        if self._service is not None and self._service.poll() is None:
            self._service.send_signal(signal.SIGINT)
            self._service.wait(timeout=TIMEOUT_SECONDS)

    def _create_key(self) -> Path:
        """Create the key that encrypts secrets; an embedded database, which readers use, creates its own."""
        key = self.folder / "master.key"
        key.touch(0o600)
        key.write_bytes(base64.b64encode(os.urandom(32)))
        return key

    def _local(self, text: str) -> str:
        for shown, used in self._replaced.items():
            text = text.replace(shown, used)
        return text

    def _run_block(self, block: Block) -> None:
        command, expected = "", list[str]()
        for line in [*block.text.splitlines(), "$ "]:
            if not line.startswith("$ "):
                expected.append(line)
                continue
            if command:
                output = self.run(command)
                missing = first_missing(expected, output)
                assert missing is None, f"{block}: {command}\nmissing: {missing}\n{output}"
            command, expected = line.removeprefix("$ "), []


def first_missing(expected: list[str], output: str) -> str | None:
    """Return the first line that the output does not have in this order; other lines are allowed between them."""
    lines = iter(output.splitlines())
    for text in expected:
        if text.strip() in ("…", ""):
            continue
        pattern = re.compile(r".*".join(re.escape(each) for each in text.strip().split("…")))
        if not any(pattern.fullmatch(line.strip()) for line in lines):
            return text
    return None
