"""Fingerprints of jobs, by which two processes detect that they run different versions of a program."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from typing import Any

from tenuto.jobs.chains import CHAIN_STEPS
from tenuto.jobs.registry import Job
from tenuto.version import __version__


def job_fingerprint(job: Job[..., Any]) -> dict[str, str | None]:
    """Return what must be equal where a job is claimed and where its code runs.

    ``source`` covers the functions of the job and not what they call; it is None where the source is not installed.
    """
    functions = getattr(job.function, CHAIN_STEPS, [job.function])
    contract = [job.name, job.input_schema(), job.is_async, job.isolated, [each.__qualname__ for each in functions]]
    return {
        "tenuto": __version__,
        "version": job.version,
        "contract": _digest(json.dumps(contract, sort_keys=True)),
        "source": _source_digest(functions),
    }


def find_difference(job: str, here: Mapping[str, str | None], there: Mapping[str, str | None]) -> str | None:
    """Return how the fingerprints of a job differ; None if they agree."""
    if here["tenuto"] != there.get("tenuto"):
        return f"Tenuto is {here['tenuto']} at the worker and {there.get('tenuto')} in the cluster"
    if here["version"] != there.get("version"):
        return f"job {job} has version {here['version']} at the worker and {there.get('version')} in the cluster"
    if here["contract"] != there.get("contract"):
        return f"job {job} has another name, input or kind of function at the worker than in the cluster"
    # guard: executors.version_skew
    if here["source"] and there.get("source") and here["source"] != there["source"]:
        return f"the source of job {job} at the worker differs from that in the cluster"
    return None


def _source_digest(functions: list[Any]) -> str | None:
    try:
        return _digest("".join(inspect.getsource(inspect.unwrap(each)) for each in functions))
    except (OSError, TypeError):  # typed in a shell, or installed without its source
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
