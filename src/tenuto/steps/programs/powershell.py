"""The step kind ``powershell``: run a script with `-NoProfile -NonInteractive -File SCRIPT`, never with `-Command`.

The script is a file of the machine, or text that is written to a private file and removed afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo

from tenuto.errors import Invalid, quoted
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.jobs.registry import Job, TaskOptions
from tenuto.model.access.secrets import TextOrSecret
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.definitions.steps import POWERSHELL
from tenuto.settings import Settings
from tenuto.steps.built_in_kinds import StepServices
from tenuto.steps.programs import program as programs

KIND = POWERSHELL
_PROGRAM_NAMES = ("pwsh", "powershell", "powershell.exe")
_QUIET_VARIABLES = {"NO_COLOR": "1", "POWERSHELL_TELEMETRY_OPTOUT": "1", "POWERSHELL_UPDATECHECK": "Off"}
_BOM = b"\xef\xbb\xbf"
"""Windows PowerShell reads a script without it in the code page of the machine."""


def _check_script(text: str | None) -> str | None:
    if text is not None:
        programs.check_absolute_path(text, "script")
        if not text.lower().endswith(".ps1"):
            raise Invalid(
                f"script {quoted(text)} is not a PowerShell script",
                code="step.powershell.script.not_ps1",
                field="script",
                remedy="name a file that ends with .ps1",
            )
    return text


def _check_script_or_text(text: str | None, info: ValidationInfo) -> str | None:
    if info.data is not None and (text is None) == (info.data.get("field_script") is None):
        raise Invalid(
            "neither script nor text is given" if text is None else "both script and text are given",
            code="step.powershell.script.not_exactly_one",
            field="script",
            remedy="give script (a file of the machine) or text (the script itself)",
        )
    return text


Script = Annotated[str | None, AfterValidator(_check_script)]
ScriptText = Annotated[
    Annotated[str, Field(min_length=1)] | None, AfterValidator(_check_script_or_text), Field(validate_default=True)
]


def create_job(services: StepServices) -> Job[..., Any]:
    """Create the handler of this kind. By default a script is not retried, because it may not be idempotent."""

    async def powershell(
        ctx: Context,
        script: Script = None,
        text: ScriptText = None,
        args: programs.Arguments = [],  # noqa: B006 — never changed; pydantic copies it
        env: programs.Environment = {},  # noqa: B006
        folder: programs.Folder = None,
        stdin: TextOrSecret | None = None,
        success_codes: programs.SuccessCodes = [0],  # noqa: B006
        warning_codes: programs.WarningCodes = [],  # noqa: B006
        output_limit: programs.OutputLimit = programs.DEFAULT_OUTPUT_BYTES,
        grace_seconds: programs.GraceSeconds = programs.DEFAULT_GRACE_SECONDS,
        sha256: programs.Digest = None,
        program: programs.Program | None = None,
    ) -> programs.ProgramResult:
        named, path = _find_powershell(program, services.get_settings())
        programs.check_variables(env, path, services.get_settings())
        given = await programs.reveal_input(ctx, services, env, stdin, args)
        options = programs.RunOptions(success_codes, warning_codes, output_limit, grace_seconds)
        with programs.scratch_folder() as scratch:
            file = await asyncio.to_thread(_prepare_file, script, text, sha256, scratch, services.get_settings())
            argv = [named, "-NoProfile", "-NonInteractive", "-File", file, *given.args]
            command = programs.Command(
                path, argv, {**_QUIET_VARIABLES, **given.env}, folder or scratch, scratch, given.stdin
            )
            return await programs.run(ctx, command, options)

    return Job(powershell, KIND, TaskPolicy(RetryPolicy(max_attempts=1)), TaskOptions(), isolated=False)


def _find_powershell(program: str | None, settings: Settings) -> tuple[str, str]:
    if program is not None:
        return programs.find_program(program, settings)
    for name in _PROGRAM_NAMES:
        with contextlib.suppress(programs.NoSuchProgram):
            return programs.find_program(name, settings)
    raise programs.NoSuchProgram(
        f"there is no PowerShell ({', '.join(_PROGRAM_NAMES)}) in {programs.search_path(settings)}",
        code="step.powershell.not_found",
        field="program",
        remedy="install PowerShell on this machine, or give its whole path as program",
    )


def _prepare_file(script: str | None, text: str | None, sha256: str | None, folder: str, settings: Settings) -> str:
    """Return the file to run: the script itself, or a private copy of checked or given text."""
    if script is None:
        return _write_script(folder, _BOM + (text or "").removeprefix("\ufeff").encode())
    try:
        real = Path(script).resolve(strict=True)
        programs.check_allowed(script, real, settings, field="script")
        content = programs.check_digest(real, sha256, field="script")
    except (OSError, RuntimeError) as error:
        raise PermanentFailure(
            f"script {script} cannot be read: {error}",
            code="step.powershell.script.unreadable",
            field="script",
            remedy="check whether it exists on this machine",
        ) from error
    # Checked content runs from a private copy, which cannot be changed in between.
    return str(real) if content is None else _write_script(folder, content)


def _write_script(folder: str, content: bytes) -> str:
    file = Path(folder, "script.ps1")
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
    return str(file)
