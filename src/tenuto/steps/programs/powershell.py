"""Steps that run a PowerShell script: `-NoProfile -NonInteractive -File SCRIPT`, never `-Command` made from data.

The script is a file of the machine, or text that is written to a file nobody else can read or change, and taken away
afterwards. Only what is particular to the kind is here; `programs` runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo

from tenuto.errors import Invalid
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.jobs.registry import Job, Using
from tenuto.model.policies import Policy, RetryPolicy
from tenuto.model.secrets import Text
from tenuto.model.steps import POWERSHELL
from tenuto.settings import Settings
from tenuto.steps.programs import program as programs
from tenuto.steps.programs.arguments import (
    Arguments,
    Digest,
    Environment,
    Folder,
    Grace,
    Kept,
    Program,
    SuccessCodes,
    WarningCodes,
    absolute,
)
from tenuto.steps.programs.program import GRACE, KEPT, Command, NoSuchProgram, ProgramResult, Rules
from tenuto.steps.step_kinds import Means

KIND = POWERSHELL
_NAMES = ("pwsh", "powershell", "powershell.exe")
_QUIET = {"NO_COLOR": "1", "POWERSHELL_TELEMETRY_OPTOUT": "1", "POWERSHELL_UPDATECHECK": "Off"}
_BOM = b"\xef\xbb\xbf"
"""Windows PowerShell takes a script without it for one in the machine's own code page."""


def _script(text: str | None) -> str | None:
    if text is not None:
        absolute(text, "script")
        if not text.lower().endswith(".ps1"):
            raise Invalid(f"{text!r:.80} is not a script", field="script", remedy="name a file that ends with .ps1")
    return text


def _one_of_two(text: str | None, info: ValidationInfo) -> str | None:
    if info.data is not None and (text is None) == (info.data.get("field_script") is None):
        why = "is missing" if text is None else "is given beside text"
        raise Invalid(why, field="script", remedy="give script (a file of the machine) or text (the script itself)")
    return text


Script = Annotated[str | None, AfterValidator(_script)]
ScriptText = Annotated[
    Annotated[str, Field(min_length=1)] | None, AfterValidator(_one_of_two), Field(validate_default=True)
]


def job(means: Means) -> Job[..., Any]:
    """What runs the steps of this kind. A script is not tried again unless its step says so: it may not bear it."""

    async def powershell(
        ctx: Context,
        script: Script = None,
        text: ScriptText = None,
        args: Arguments = [],  # noqa: B006 — never changed; pydantic copies it
        env: Environment = {},  # noqa: B006
        folder: Folder = None,
        stdin: Text | None = None,
        success_codes: SuccessCodes = [0],  # noqa: B006
        warning_codes: WarningCodes = [],  # noqa: B006
        output_limit: Kept = KEPT,
        grace_seconds: Grace = GRACE,
        sha256: Digest = None,
        program: Program | None = None,
    ) -> ProgramResult:
        named, path = _find(program, means.settings())
        surroundings = {**_QUIET, **await programs.environment(ctx, means, env)}
        given = None if stdin is None else await programs.reveal(ctx, means, stdin, field="stdin")
        texts = [await programs.reveal(ctx, means, each, field="args") for each in args]
        with programs.scratch_folder() as scratch:
            file = await asyncio.to_thread(_prepared, script, text, sha256, scratch, means.settings())
            argv = [named, "-NoProfile", "-NonInteractive", "-File", file, *texts]
            command = Command(path, argv, surroundings, folder or scratch, scratch, given)
            return await programs.run(ctx, command, Rules(success_codes, warning_codes, output_limit, grace_seconds))

    return Job(powershell, KIND, Policy(RetryPolicy(max_retries=1)), Using(), isolated=False)


def _find(program: str | None, settings: Settings) -> tuple[str, str]:
    if program is not None:
        return programs.find(program, settings)
    for name in _NAMES:
        with contextlib.suppress(NoSuchProgram):
            return programs.find(name, settings)
    raise NoSuchProgram(
        f"there is no PowerShell ({', '.join(_NAMES)}) in {programs.search_path(settings)}",
        field="program",
        remedy="install PowerShell on this machine, or give its whole path as program",
    )


def _prepared(script: str | None, text: str | None, sha256: str | None, folder: str, settings: Settings) -> str:
    """The file to run: the script where it stands, or one of our own."""
    if script is None:
        return _written(folder, _BOM + (text or "").removeprefix("\ufeff").encode())
    try:
        real = Path(script).resolve(strict=True)
        programs.refuse_outside(script, real, settings, field="script")
        content = programs.check_digest(real, sha256, field="script")
    except (OSError, RuntimeError) as error:
        raise PermanentFailure(
            f"{script} cannot be read: {error}", field="script", remedy="see whether it is on this machine"
        ) from error
    # What was checked is what runs: a copy, which nobody can change in between.
    return str(real) if content is None else _written(folder, content)


def _written(folder: str, content: bytes) -> str:
    file = Path(folder, "script.ps1")
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
    return str(file)
