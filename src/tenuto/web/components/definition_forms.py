"""View models of the editors: a definition as fields, in the format of definition files.

The browser reads the fields back to a definition (static/js/forms.js), so that an unchanged form gives an equal one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenuto.app import Tenuto
from tenuto.errors import TenutoError
from tenuto.presentation.text_formats import count_noun
from tenuto.web.components.schema_forms import ArgumentsForm, make_arguments_form

MAX_NAMES = 500
"""Names of jobs and schedules that fields offer."""
JOB, SCHEDULE = "job", "schedule"
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class TriggerForm:
    """A trigger as fields; fields of other kinds are empty."""

    kind: str
    cron: str = ""
    times: str = ""
    every: str = ""
    days: str = ""
    opens: str = ""
    closes: str = ""
    anchor: str = ""
    zone: str = "UTC"
    start: str = ""
    end: str = ""
    excluded: str = ""
    jitter: str = ""


@dataclass(frozen=True, slots=True)
class PolicyForm:
    """Timeout and retry policy; empty fields are those of the job."""

    timeout: str = ""
    max_attempts: str = ""
    base_seconds: str = ""
    factor: str = ""
    cap_seconds: str = ""
    jitter: str = ""
    on_lost: str = ""
    queue: str = ""
    priority: str = ""

    @property
    def summary(self) -> str:
        """The settings that a card shows."""
        parts = [count_noun(int(self.max_attempts), "attempt")] if self.max_attempts.isdigit() else []
        if self.timeout:
            parts.append(f"timeout {duration_text(self.timeout)}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class StepForm:
    """One step as fields."""

    type: str
    """``job``, ``schedule``, or a step kind."""
    target: str
    """Name of the job or schedule; for other kinds only if it is set."""
    name: str
    arguments: ArgumentsForm | None
    """Its typed arguments; None for a step that runs a schedule."""
    help: str
    policy: PolicyForm
    continue_on_failure: bool
    needs: str
    """Names of the steps that it needs, one per line."""
    when: str

    @property
    def title(self) -> str:
        return self.name or self.target or "New step"

    @property
    def summary(self) -> str:
        """Its options, in the words of a card."""
        parts = [self.policy.summary, "continues on failure" if self.continue_on_failure else ""]
        parts.append(f"needs {', '.join(self.needs.splitlines())}" if self.needs else "")
        parts.append(f"if {self.when}" if self.when else "")
        return " · ".join(part for part in parts if part)

    @property
    def runs(self) -> str:
        """What it runs, in the words of a card."""
        return " ".join(part for part in (self.type, self.target) if part)


@dataclass(frozen=True, slots=True)
class Choices:
    """Names that fields offer."""

    jobs: Sequence[str]
    schedules: Sequence[str]
    kinds: Sequence[str]
    zones: Sequence[str] = ()


async def load_choices(app: Tenuto) -> Choices:
    """Return the names of jobs, schedules and step kinds that this service knows."""
    schedules = await app.schedules.list(limit=MAX_NAMES)
    jobs = sorted(app.jobs.jobs_by_name)[:MAX_NAMES]
    kinds = sorted(name for name in app.jobs.kinds if name != SCHEDULE)
    return Choices(jobs, [each.name for each in schedules], kinds)


# --- triggers ---------------------------------------------------------------------------------------------------------


def make_trigger_form(fields: Mapping[str, Any], zone: str = "UTC") -> TriggerForm:
    """Return a trigger as fields; ``zone`` is used if it has none."""
    between = list(fields.get("between") or ("", ""))
    return TriggerForm(
        kind=str(fields.get("kind", "manual")),
        cron=str(fields.get("cron", "")),
        times=", ".join(_as_list(fields.get("times"))),
        every=duration_text(fields.get("every")),
        days=", ".join(_as_list(fields.get("days"))),
        opens=str(between[0]),
        closes=str(between[-1]),
        anchor=str(fields.get("anchor") or ""),
        zone=str(fields.get("zone", zone)),
        start=str(fields.get("start") or ""),
        end=str(fields.get("end") or ""),
        excluded=", ".join(_as_list(fields.get("excluded"))),
        jitter=duration_text(fields.get("jitter")),
    )


def _as_list(value: Any) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(each) for each in value]


_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def duration_text(value: Any) -> str:
    """Return a duration as it can be entered: whole units as ``90s``, ``15m``, ``1h`` or ``2d``."""
    if value is None or value == "":
        return ""
    if isinstance(value, str):
        if not value.replace(".", "", 1).isdigit():
            return value
        value = float(value)
    if value != int(value):
        return f"{value:g}"
    size, unit = next(each for each in _UNITS if int(value) % each[0] == 0)
    return f"{int(value) // size}{unit}"


# --- steps ------------------------------------------------------------------------------------------------------------


def make_policy_form(fields: Mapping[str, Any]) -> PolicyForm:
    """Return the policy fields of a step or a manifest."""
    retry: Mapping[str, Any] = fields.get("retry") or {}
    if "max_attempts" in fields:
        retry = {**retry, "max_attempts": fields["max_attempts"]}
    return PolicyForm(
        timeout=_number_text(fields.get("timeout")),
        **{
            name: _number_text(retry.get(name))
            for name in ("max_attempts", "base_seconds", "factor", "cap_seconds", "jitter")
        },
        on_lost=str(fields.get("on_lost") or ""),
        queue=str(fields.get("queue") or ""),
        priority=_number_text(fields.get("priority")),
    )


def _number_text(value: Any) -> str:
    return "" if value is None else str(value) if isinstance(value, str) else f"{value:.15g}"


def make_step_form(app: Tenuto, fields: Mapping[str, Any]) -> StepForm:
    """Return a step of a definition file as fields."""
    kind = next((name for name in (JOB, SCHEDULE) if name in fields), str(fields.get("kind") or JOB))
    target = str(fields.get(kind) or "") if kind in (JOB, SCHEDULE) else str(fields.get("target") or "")
    schema, help = find_schema(app, kind, target)
    name = "input" if kind == JOB else "arguments"
    return StepForm(
        type=kind,
        target=target,
        name=str(fields.get("name") or ""),
        arguments=None
        if kind == SCHEDULE or (kind == JOB and not target)
        else make_arguments_form(name, schema, fields.get(name)),
        help=help,
        policy=make_policy_form(fields),
        continue_on_failure=bool(fields.get("continue_on_failure")),
        needs="\n".join(map(str, fields.get("needs") or ())),
        when=str(fields.get("when") or ""),
    )


def make_step_groups(app: Tenuto, steps: Sequence[Any]) -> list[list[StepForm]]:
    """Return the steps of a definition file as groups of fields."""
    groups = [each if isinstance(each, list) else [each] for each in steps]
    return [[make_step_form(app, step) for step in group] for group in groups]


def find_schema(app: Tenuto, kind: str, target: str) -> tuple[Mapping[str, Any] | None, str]:
    """Return the JSON schema of the arguments of a step and its description; no schema if it is not known here."""
    if kind == JOB and not target:
        return {}, ""
    try:
        job = app.jobs.get_handler(kind, target or kind)
    except TenutoError:
        return None, f"This web service does not know the {'job' if kind == JOB else 'step kind'}."
    known = app.jobs.kinds.get(kind)
    text = (job.function.__doc__ or "") if kind == JOB else (known.help if known is not None else "")
    return job.input_schema(), text.strip().partition("\n\n")[0].replace("\n", " ")
