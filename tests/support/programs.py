"""Programs for tests: they record their arguments and environment, or misbehave."""

from __future__ import annotations

import json
import os
import stat
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tenuto.jobs.context import Context
from tenuto.jobs.registry import Job
from tenuto.model.access.secrets import TextOrSecret
from tenuto.settings import Settings, load_settings
from tenuto.steps.built_in_kinds import StepServices
from tenuto.steps.programs import executable, powershell
from tests.jobs.conftest import RunnerHarness

SECRET = "correct-horse-battery"
PYTHON = os.path.realpath(sys.executable)

HOSTILE_TEXTS = [
    "; id", "$(id)", "`id`", "| id", "&& id", "two\nlines", "a\rb", "",  # B49
    "-rf", "--output=/etc/x", "-o ProxyCommand=id", "--", "-",  # B50
    '"&calc&"', "%COMSPEC%", "^", "C:\\x\\", "a\\",  # B53
    "'; Stop-Computer #", "$(Get-Date)", "’quoted’", "“so”", "@(1,2)", "$env:PATH", "`n", "{0}", "-Command",  # B54
    "'", '"', "\\", "*", "?", "[a-z]", "~", "$HOME", "#", "!!", "\t", "\x1b]52;c;aGk=\x07", "x" * 60_000,
    "Ünïcødé", "日本語", "\U0001f35e", "\u202egnp.exe", "é",
]  # fmt: skip


class ProgramHarness:
    """Creates programs and runs them by the step kinds executable and powershell."""

    def __init__(self, harness: RunnerHarness, folder: Path, **given: Any) -> None:
        self.harness = harness
        self.folder = folder
        self.before_reveal: Callable[[], object] = lambda: None
        self.settings = load_settings(database="postgresql://nobody@nowhere.invalid/none", home=folder, **given)
        self.executable = executable.create_job(self._services())
        self.powershell = powershell.create_job(self._services())
        harness.app.jobs.handlers_by_kind.update({"executable": self.executable, "powershell": self.powershell})

    def _services(self) -> StepServices:
        async def reveal(ctx: Context, text: TextOrSecret) -> str:
            if isinstance(text, str):
                return text
            self.before_reveal()
            ctx.redact(SECRET)
            return text.prefix + SECRET

        async def no_database() -> Any:
            raise AssertionError("programs need no database")

        def settings() -> Settings:
            return self.settings

        return StepServices(no_database, settings, reveal)

    def create_program(self, name: str, code: str, *, folder: Path | None = None) -> str:
        """Create a Python program and return its path."""
        file = (folder or self.folder) / name
        file.write_text(f"#!{PYTHON} -IS\n{textwrap.dedent(code)}", encoding="utf-8")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return str(file)

    def create_recorder(self, name: str = "recorder") -> str:
        """Create a program that records arguments, environment and input byte for byte."""
        return self.create_program(
            name,
            f"""
            import json, os, sys
            scripts = [each for each in sys.argv if each.endswith(".ps1")]
            given = {{
                "argv": [os.fsencode(each).hex() for each in sys.argv],
                "env": {{name.decode(): value.decode() for name, value in os.environb.items()}},
                "folder": os.getcwd(),
                "stdin": sys.stdin.buffer.read().hex(),
                "script": next((open(each, encoding="utf-8-sig").read() for each in scripts), None),
                "mode": next((oct(os.stat(each).st_mode) for each in scripts), None),
                "fds": sorted(os.listdir("/proc/self/fd")),
                "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
            }}
            with open({str(self.folder / "record")!r}, "w") as file:
                json.dump(given, file)
            """,
        )

    def load_record(self) -> dict[str, Any]:
        """Return the record of the recorder."""
        found: dict[str, Any] = json.loads((self.folder / "record").read_text(encoding="utf-8"))
        return found

    def load_arguments(self) -> list[str]:
        return [bytes.fromhex(each).decode() for each in self.load_record()["argv"]]


def task_fields(job: Job[..., Any], **more: Any) -> dict[str, Any]:
    """Return the task fields for a step of this kind."""
    return {"kind": job.name, **more}
