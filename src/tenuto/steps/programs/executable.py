"""The step kind ``executable``: run a program of the machine, without a shell.

A program with a digest runs from a pinned copy: the checked content cannot be changed before the start. On Linux the
copy is in memory, sealed against writing, and started through an open descriptor; no path leads to it. Elsewhere, or
where the kernel forbids it, the copy is a file in a private folder. In both cases the program does not run from its
original folder; the variable ``TENUTO_PROGRAM`` holds the original path.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenuto.jobs.context import Context
from tenuto.jobs.registry import Job, TaskOptions
from tenuto.model.access.secrets import TextOrSecret
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.definitions.steps import EXECUTABLE
from tenuto.steps.built_in_kinds import StepServices
from tenuto.steps.programs import program as programs

KIND = EXECUTABLE


def create_job(services: StepServices) -> Job[..., Any]:
    """Create the handler of this kind. By default a program is not retried, because it may not be idempotent."""

    async def executable(
        ctx: Context,
        program: programs.Program,
        args: programs.Arguments = [],  # noqa: B006 — never changed; pydantic copies it
        env: programs.Environment = {},  # noqa: B006
        folder: programs.Folder = None,
        stdin: TextOrSecret | None = None,
        success_codes: programs.SuccessCodes = [0],  # noqa: B006
        warning_codes: programs.WarningCodes = [],  # noqa: B006
        output_limit: programs.OutputLimit = programs.DEFAULT_OUTPUT_BYTES,
        grace_seconds: programs.GraceSeconds = programs.DEFAULT_GRACE_SECONDS,
        sha256: programs.Digest = None,
    ) -> programs.ProgramResult:
        named, path = programs.find_program(program, services.get_settings())
        content = await asyncio.to_thread(programs.check_digest, path, sha256, field="program")
        programs.check_variables(env, path, services.get_settings())
        given = await programs.reveal_input(ctx, services, env, stdin, args)
        options = programs.RunOptions(success_codes, warning_codes, output_limit, grace_seconds)
        with ExitStack() as cleanup:
            scratch = "" if folder is not None else cleanup.enter_context(programs.scratch_folder())
            file = PinnedCopy(path)
            if content is not None:
                given.env["TENUTO_PROGRAM"] = path
                copying = create_pinned_copy(content, Path(path).name, programs.scratch_folder)
                file = await asyncio.to_thread(cleanup.enter_context, copying)  # guard: programs.checked_copy
            command = programs.Command(
                file.path, [named, *given.args], given.env, folder or scratch, scratch, given.stdin, file.descriptor
            )
            return await programs.run(ctx, command, options)

    return Job(executable, KIND, TaskPolicy(RetryPolicy(max_attempts=1)), TaskOptions(), isolated=False)


# --- pinned copies ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PinnedCopy:
    """The file that is started."""

    path: str
    descriptor: int | None = None
    """Descriptor of a copy in memory. The process that starts the program must have it open under this number."""


@contextlib.contextmanager
def create_pinned_copy(
    content: bytes, name: str, create_folder: Callable[[], AbstractContextManager[str]]
) -> Iterator[PinnedCopy]:
    """Create a copy for the duration of the block, in memory or in a private folder."""
    descriptor = _copy_to_memory(content, name)
    if descriptor is None:
        with create_folder() as private:
            yield PinnedCopy(_copy_to_file(content, Path(private, name)))
        return
    try:
        yield PinnedCopy(f"/proc/self/fd/{descriptor}", descriptor)
    finally:
        os.close(descriptor)


def _copy_to_memory(content: bytes, name: str) -> int | None:
    if sys.platform != "linux" or not Path("/proc/self/fd").exists():
        return None
    try:
        descriptor = os.memfd_create(name[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return None
    try:
        _write(descriptor, content)
        os.fchmod(descriptor, 0o500)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)  # guard: programs.sealed_copy
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _copy_to_file(content: bytes, file: Path) -> str:
    # guard: programs.read_only_copy, programs.exclusive_copy
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o500)
    try:
        _write(descriptor, content)
    finally:
        os.close(descriptor)
    return str(file)


def _write(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
