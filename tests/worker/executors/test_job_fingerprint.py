"""Fingerprints of jobs differ between versions of a program."""

from __future__ import annotations

from typing import Any

from tenuto import Job, Tenuto
from tenuto.worker.executors.job_fingerprint import find_difference, job_fingerprint


def _job(number: int, version: str | None = None) -> Job[..., Any]:
    app = Tenuto("postgresql://nobody@nowhere.invalid/none", home="/tmp/tenuto-never-made")

    async def add(n: int) -> int:
        return n + 1

    async def add_more(n: int) -> int:
        return n + 2

    async def add_text(n: str) -> str:
        return n

    function: Any = (add, add_more, add_text)[number]
    function.__qualname__ = "add"
    job: Job[..., Any] = app.job(name="add", version=version)(function)
    return job


def test_equal_jobs_do_not_differ() -> None:
    assert find_difference("add", job_fingerprint(_job(0)), job_fingerprint(_job(0))) is None


def test_differences_are_named() -> None:
    here = job_fingerprint(_job(0))
    assert "the source of job add" in str(find_difference("add", here, job_fingerprint(_job(1))))
    assert "another name, input" in str(find_difference("add", here, job_fingerprint(_job(2))))
    assert "has version None" in str(find_difference("add", here, job_fingerprint(_job(0, version="2"))))
    assert "Tenuto is" in str(find_difference("add", here, {**here, "tenuto": "0.0.1"}))


def test_missing_source_is_no_difference() -> None:
    here = job_fingerprint(_job(0))
    assert find_difference("add", here, {**here, "source": None}) is None
