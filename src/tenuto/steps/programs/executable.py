"""Steps that run a program of the machine: argv as it stands, never a shell, nothing left behind.

Only what is particular to the kind is here; `programs` runs it.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tenuto.jobs.context import Context
from tenuto.jobs.registry import Job, Using
from tenuto.model.policies import Policy, RetryPolicy
from tenuto.model.secrets import Text
from tenuto.model.steps import EXECUTABLE
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
)
from tenuto.steps.programs.pinned_executable import Copy, copy_of
from tenuto.steps.programs.program import GRACE, KEPT, Command, ProgramResult, Rules
from tenuto.steps.step_kinds import Means

KIND = EXECUTABLE


def job(means: Means) -> Job[..., Any]:
    """What runs the steps of this kind. A program is not tried again unless its step says so: it may not bear it."""

    async def executable(
        ctx: Context,
        program: Program,
        args: Arguments = [],  # noqa: B006 — never changed; pydantic copies it
        env: Environment = {},  # noqa: B006
        folder: Folder = None,
        stdin: Text | None = None,
        success_codes: SuccessCodes = [0],  # noqa: B006
        warning_codes: WarningCodes = [],  # noqa: B006
        output_limit: Kept = KEPT,
        grace_seconds: Grace = GRACE,
        sha256: Digest = None,
    ) -> ProgramResult:
        named, path = programs.find(program, means.settings())
        content = await asyncio.to_thread(programs.check_digest, path, sha256, field="program")
        surroundings = await programs.environment(ctx, means, env)
        given = None if stdin is None else await programs.reveal(ctx, means, stdin, field="stdin")
        argv = [named, *[await programs.reveal(ctx, means, each, field="args") for each in args]]
        rules = Rules(success_codes, warning_codes, output_limit, grace_seconds)
        with ExitStack() as until_it_ended:
            scratch = "" if folder is not None else until_it_ended.enter_context(programs.scratch_folder())
            runs = Copy(path)
            if content is not None:
                surroundings["TENUTO_PROGRAM"] = path
                copying = copy_of(content, Path(path).name, programs.scratch_folder)
                runs = await asyncio.to_thread(until_it_ended.enter_context, copying)
            where = folder or scratch
            command = Command(runs.path, argv, surroundings, where, scratch, given, runs.descriptor)
            return await programs.run(ctx, command, rules)

    return Job(executable, KIND, Policy(RetryPolicy(max_retries=1)), Using(), isolated=False)
