"""Programs for tests: they record what they were given, and do what good programs would not."""

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
from tenuto.model.secrets import Text
from tenuto.settings import Settings, load
from tenuto.steps.programs import executable, powershell
from tenuto.steps.step_kinds import Means
from tests.jobs.conftest import Bench

SECRET = "correct-horse-battery"
PYTHON = os.path.realpath(sys.executable)

NASTY = [
    "; id", "$(id)", "`id`", "| id", "&& id", "two\nlines", "a\rb", "",  # B49
    "-rf", "--output=/etc/x", "-o ProxyCommand=id", "--", "-",  # B50
    '"&calc&"', "%COMSPEC%", "^", "C:\\x\\", "a\\",  # B53
    "'; Stop-Computer #", "$(Get-Date)", "’quoted’", "“so”", "@(1,2)", "$env:PATH", "`n", "{0}", "-Command",  # B54
    "'", '"', "\\", "*", "?", "[a-z]", "~", "$HOME", "#", "!!", "\t", "\x1b]52;c;aGk=\x07", "x" * 60_000,
    "Ünïcødé", "日本語", "\U0001f35e", "\u202egnp.exe", "é",
]  # fmt: skip


class Workshop:
    """Where programs are made, and jobs of both kinds that may run them."""

    def __init__(self, bench: Bench, folder: Path, **given: Any) -> None:
        self.bench = bench
        self.folder = folder
        self.before_revealing: Callable[[], object] = lambda: None
        self.settings = load(database="postgresql://nobody@nowhere.invalid/none", home=folder, **given)
        self.executable = executable.job(self._means())
        self.powershell = powershell.job(self._means())
        bench.app.jobs.by_kind.update({"executable": self.executable, "powershell": self.powershell})

    def _means(self) -> Means:
        async def reveal(ctx: Context, text: Text) -> str:
            if isinstance(text, str):
                return text
            self.before_revealing()
            ctx.conceal(SECRET)
            return text.prefix + SECRET

        async def no_database() -> Any:
            raise AssertionError("a program needs no database")

        def settings() -> Settings:
            return self.settings

        return Means(no_database, settings, reveal)

    def program(self, name: str, code: str, *, folder: Path | None = None) -> str:
        """A program, in Python."""
        file = (folder or self.folder) / name
        file.write_text(f"#!{PYTHON} -IS\n{textwrap.dedent(code)}", encoding="utf-8")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return str(file)

    def recorder(self, name: str = "recorder") -> str:
        """Writes down, byte for byte, what it was given."""
        return self.program(
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

    def record(self) -> dict[str, Any]:
        """What the recorder was given."""
        found: dict[str, Any] = json.loads((self.folder / "record").read_text(encoding="utf-8"))
        return found

    def recorded_arguments(self) -> list[str]:
        return [bytes.fromhex(each).decode() for each in self.record()["argv"]]


def fields(job: Job[..., Any], **more: Any) -> dict[str, Any]:
    """What makes a task one of this kind."""
    return {"kind": job.name, **more}
