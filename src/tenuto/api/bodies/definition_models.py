"""Models of definitions in request and response bodies: schedules, manifests, groups, queues, and documents with many.

The models describe the bodies in the OpenAPI document. The parser of definition files validates them, because its
errors name the field, a stable code and a remedy (`DescribedBy`). `tests/api/test_definition_models.py` compares the
fields of the models with those of the parser. The registered step kind describes the arguments of a step
(`openapi.add_step_kinds`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, RootModel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from tenuto.model.definitions.manifests import MAX_ACTIVE, OnDeadLetter, ScheduleType
from tenuto.model.definitions.policies import DEFAULT_MAX_ATTEMPTS, MAX_ATTEMPTS
from tenuto.model.definitions.schedules import MAX_CATCH_UP_RUNS, MisfirePolicy, OverlapPolicy
from tenuto.model.work.tasks import MAX_PRIORITY

Duration = Annotated[str | float, Field(description="Seconds, or a text such as `90s`, `15m`, `1h` or `2d`.")]
Days = Annotated[
    str | list[str],
    Field(description="Days of the week: `mon-fri`, `weekdays`, `weekends`, or a list such as [mon, thu]."),
]
TimeOfDay = Annotated[str, Field(description="Time on the 24-hour clock.", examples=["06:00"])]
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="A higher priority runs first.")]


class DescribedBy:
    """Annotation of a value that this model describes in the OpenAPI document, without validating it."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # FastAPI validates Python values; the JSON branch only describes.
        return core_schema.json_or_python_schema(
            json_schema=handler.generate_schema(self._model),
            python_schema=handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(_unchanged),
        )


def _unchanged(value: Any) -> Any:
    return value


class DefinitionModel(BaseModel):
    """Part of a definition. Unknown fields are refused, and optional fields are left out instead of being null."""

    model_config = ConfigDict(extra="forbid")
    nullable_fields: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        for name, field in handler.resolve_ref_schema(described).get("properties", {}).items():
            if name not in cls.nullable_fields:
                _remove_null(field)
        return described


def _remove_null(field: JsonSchemaValue) -> None:
    alternatives = [each for each in field.get("anyOf", ()) if each != {"type": "null"}]
    if len(alternatives) == 1:
        del field["anyOf"]
        field.update({**alternatives[0], **field})
    elif alternatives:
        field["anyOf"] = alternatives
    if field.get("default", ...) is None:
        del field["default"]


# --- triggers ---------------------------------------------------------------------------------------------------------


class CalendarLimits(DefinitionModel):
    """Time zone and dates of a trigger."""

    zone: str = Field(default="UTC", description="IANA time zone.", examples=["Europe/London"])
    start: str | None = Field(default=None, description="First date.", examples=["2031-01-01"])
    end: str | None = Field(default=None, description="Last date.")
    excluded: list[str] | None = Field(default=None, description="Dates without runs.")
    jitter: Duration | None = Field(default=None, description="Longest random delay of a run.")


class CronTrigger(CalendarLimits):
    """Runs by a cron line."""

    kind: Literal["cron"]
    cron: str = Field(examples=["0 2 * * *"])


class TimesTrigger(CalendarLimits):
    """Runs at times of the day."""

    kind: Literal["times"]
    times: TimeOfDay | list[TimeOfDay]
    days: Days | None = None


class IntervalTrigger(CalendarLimits):
    """Runs at an interval."""

    kind: Literal["interval"]
    every: Duration
    between: list[TimeOfDay] | None = Field(
        default=None, min_length=2, max_length=2, description="Daily window: opening and closing time."
    )
    days: Days | None = None
    anchor: str | None = Field(default=None, description="Instant from which intervals are counted, with UTC offset.")


class ManualTrigger(DefinitionModel):
    """Runs only on request."""

    kind: Literal["manual"]


class Trigger(
    RootModel[Annotated[CronTrigger | TimesTrigger | IntervalTrigger | ManualTrigger, Field(discriminator="kind")]]
):
    """When a schedule or a manifest runs."""


class InlineTrigger(DefinitionModel):
    """Trigger fields beside the other fields of a definition, instead of `trigger`."""

    cron: str | None = Field(default=None, description="Short form of a trigger of kind `cron`.")
    times: TimeOfDay | list[TimeOfDay] | None = Field(default=None, description="Short form of kind `times`.")
    every: Duration | None = Field(default=None, description="Short form of a trigger of kind `interval`.")
    zone: str | None = None
    days: Days | None = None
    between: list[TimeOfDay] | None = Field(default=None, min_length=2, max_length=2)
    anchor: str | None = None
    start: str | None = None
    end: str | None = None
    excluded: list[str] | None = None
    jitter: Duration | None = None


# --- policies ---------------------------------------------------------------------------------------------------------


class RetryPolicyFields(DefinitionModel):
    """Number and delay of the retries of a failed task."""

    max_attempts: int = Field(
        default=DEFAULT_MAX_ATTEMPTS, ge=1, le=MAX_ATTEMPTS, description="Maximum number of attempts."
    )
    base_seconds: float = Field(default=10.0, ge=0, le=30 * 86_400, description="Delay after the first failure.")
    factor: float = Field(default=2.0, ge=1, le=100, description="Factor by which each further delay grows.")
    cap_seconds: float = Field(default=3600.0, ge=0, le=366 * 86_400, description="Longest delay.")
    jitter: float = Field(default=0.2, ge=0, le=1, description="Fraction by which a delay is shortened at random.")


class MisfireFields(DefinitionModel):
    """Treatment of due instants that were missed while no scheduler ran."""

    policy: MisfirePolicy = MisfirePolicy.ONCE
    max_runs: int | None = Field(default=None, ge=1, le=MAX_CATCH_UP_RUNS, description="With `all`: most runs.")
    grace_seconds: float | None = Field(default=None, description="With `skip`: how late a run may be.")


class PolicyOptions(DefinitionModel):
    """Options of tasks; those left out are taken from the job."""

    timeout: Duration | None = None
    retry: RetryPolicyFields | None = None
    max_attempts: int | None = Field(
        default=None, ge=1, le=MAX_ATTEMPTS, description="Short form of `retry.max_attempts`."
    )
    on_lost: Literal["retry", "fail"] | None = Field(default=None, description="What to do if the worker is lost.")


# --- steps ------------------------------------------------------------------------------------------------------------


class StepOptions(PolicyOptions):
    """Options of every step."""

    name: str | None = Field(default=None, description="Name of the step, unique in the schedule.")
    continue_on_failure: bool | None = None
    queue: str | None = None
    priority: Priority | None = None
    needs: list[str] | None = Field(
        default=None,
        description="Names of steps of earlier groups: it starts when they have ended, although others still run.",
    )
    when: str | None = Field(
        default=None,
        description="Condition on earlier steps; if it is not met, the step is skipped.",
        examples=["steps.extract.succeeded and steps.extract.output.count > 0"],
    )
    index: int | None = Field(
        default=None,
        ge=0,
        description="Number of the group, as an alternative to nested lists; then every step has one.",
    )


class JobStep(StepOptions):
    """A step that runs a registered job."""

    job: str = Field(description="Name of the job, see `GET /api/v1/jobs`.")
    input: dict[str, Any] | None = Field(
        default=None,
        description="Arguments of the job by name. `${steps.NAME.output}` is the output of an earlier step.",
    )


class ScheduleStep(StepOptions):
    """A step that runs another schedule and waits for its end. It has no timeout."""

    schedule: str = Field(description="Name of the schedule.")


class KindStep(StepOptions):
    """A step of a step kind, see `GET /api/v1/step-kinds`."""

    kind: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    target: str | None = None


class Step(RootModel[JobStep | ScheduleStep | KindStep]):
    """A step: a job, another schedule, or a step kind with its arguments."""


class Steps(RootModel[Annotated[list[Step | list[Step]], Field(min_length=1)]]):
    """Steps in order; the steps of an inner list run in parallel."""


# --- schedules --------------------------------------------------------------------------------------------------------


class ScheduleDeclaration(InlineTrigger):
    """A schedule as in a definition file."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "Nightly HR Sync",
                    "trigger": {"kind": "cron", "cron": "0 2 * * *", "zone": "Europe/London"},
                    "steps": [
                        {"name": "import", "job": "hr_import", "input": {"full": True}, "timeout": "30m"},
                        [
                            {"name": "export to AD", "job": "ad_export"},
                            {"name": "export to LDAP", "job": "ldap_export"},
                        ],
                    ],
                    "overlap": "skip",
                }
            ]
        }
    )

    name: str = Field(max_length=200)
    description: str | None = Field(default=None, max_length=4000)
    trigger: Trigger | Literal["manual"] | None = None
    overlap: OverlapPolicy | None = Field(
        default=None, description="What to do when a run is due while another one is active; default: `skip`."
    )
    misfire: MisfireFields | MisfirePolicy | None = None
    steps: Steps


class ReadOnlyFields(DefinitionModel):
    """Fields of a response to GET that a replacement may contain and that change nothing."""

    nullable_fields = frozenset({"last_run_at", "next_run_at"})

    enabled: bool | None = Field(default=None, description="Must not differ; use `…/enable` and `…/disable`.")
    id: UUID | None = Field(default=None, description="Read-only.")
    version: int | None = Field(default=None, description="Read-only.")
    origin: str | None = Field(default=None, description="Read-only.")
    created_at: datetime | None = Field(default=None, description="Read-only.")
    updated_at: datetime | None = Field(default=None, description="Read-only.")
    last_run_at: datetime | None = Field(default=None, description="Read-only.")
    next_run_at: datetime | None = Field(default=None, description="Read-only.")


class NewSchedule(ScheduleDeclaration):
    """A new schedule."""

    enabled: bool = True


class ScheduleReplacement(ReadOnlyFields, ScheduleDeclaration):
    """A changed schedule: the response to GET may be sent back. Read-only fields are ignored."""

    name: str | None = Field(default=None, max_length=200, description="New name; default: the present one.")  # type: ignore[assignment]


class ScheduleResource(BaseModel):
    """A stored schedule."""

    id: UUID
    name: str
    description: str
    trigger: Annotated[dict[str, Any], DescribedBy(Trigger)]
    steps: Annotated[list[Any], DescribedBy(Steps)]
    overlap: OverlapPolicy
    misfire: Annotated[dict[str, Any], DescribedBy(MisfireFields)]
    enabled: bool
    version: int
    origin: str = Field(description="`hand`, `file` or `code`.")
    created_at: datetime
    updated_at: datetime
    last_run_at: datetime | None
    next_run_at: datetime | None


# --- manifests --------------------------------------------------------------------------------------------------------


class ManifestDeclaration(InlineTrigger, PolicyOptions):
    """A manifest as in a definition file."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "external_id": "invoices",
                    "job": "make_invoice",
                    "properties": {"currency": "EUR"},
                    "trigger": {"kind": "cron", "cron": "0 6 1 * *", "zone": "Europe/Paris"},
                    "retry": {"max_attempts": 5, "base_seconds": 30},
                    "group": "billing",
                }
            ]
        }
    )

    external_id: str = Field(max_length=200)
    name: str | None = None
    description: str | None = Field(default=None, max_length=4000)
    job: str = Field(description="Name of the job, see `GET /api/v1/jobs`.")
    properties: dict[str, Any] | None = Field(default=None, description="Default arguments of every run.")
    trigger: Trigger | Literal["manual"] | None = None
    after: str | None = Field(default=None, description="External id of a manifest whose success starts this one.")
    on_demand: bool | None = Field(default=None, description="Run only the batch items that are submitted.")
    queue: str | None = None
    priority: Priority | None = None
    group: str | None = Field(default=None, max_length=64)
    max_active: int | None = Field(default=None, ge=1, le=MAX_ACTIVE, description="Maximum number of active runs.")
    max_retries: int | None = Field(
        default=None, ge=0, le=MAX_ATTEMPTS, description="Another name for `max_attempts`; 0 means 1. Give one of them."
    )
    on_dead_letter: OnDeadLetter | None = Field(
        default=None, description="Whether open dead letters stop runs of its trigger. (default: block)"
    )
    expires_in: Duration | None = Field(
        default=None, description="Time after its creation at which a run that has not started ends as expired."
    )


class NewManifest(ManifestDeclaration):
    """A new manifest."""

    enabled: bool = True


class ManifestReplacement(ReadOnlyFields, ManifestDeclaration):
    """A changed manifest: the response to GET may be sent back. Read-only fields are ignored."""

    nullable_fields = ReadOnlyFields.nullable_fields | {"last_successful_run_at"}

    external_id: str | None = Field(default=None, max_length=200, description="Must not differ.")  # type: ignore[assignment]
    schedule_type: ScheduleType | None = Field(default=None, description="Read-only.")
    property_type: str | None = Field(default=None, description="Read-only.")
    last_successful_run_at: datetime | None = Field(default=None, description="Read-only.")


class ManifestResource(BaseModel):
    """A stored manifest."""

    id: UUID
    external_id: str
    name: str
    description: str
    job: str
    properties: dict[str, Any]
    trigger: Annotated[dict[str, Any], DescribedBy(Trigger)] = Field(default_factory=dict)
    after: str | None = None
    on_demand: bool = False
    timeout: float | None = None
    retry: RetryPolicyFields
    on_lost: Literal["retry", "fail"]
    queue: str
    priority: int
    group: str | None = None
    max_active: int | None = None
    on_dead_letter: OnDeadLetter = OnDeadLetter.BLOCK
    expires_in: float | None = Field(default=None, description="In seconds.")
    enabled: bool
    schedule_type: ScheduleType
    property_type: str
    version: int
    origin: str = Field(description="`hand`, `file` or `code`.")
    created_at: datetime
    updated_at: datetime
    last_successful_run_at: datetime | None
    last_run_at: datetime | None
    next_run_at: datetime | None


# --- documents --------------------------------------------------------------------------------------------------------


class GroupDeclaration(DefinitionModel):
    """A manifest group as in a definition file; fields left out keep their values."""

    name: str = Field(max_length=64, description="Name; `*` is the group of all manifests.")
    max_active: int | Literal["none"] | None = None
    priority: Priority | None = None
    enabled: bool | None = None
    rate_limit: str | None = Field(
        default=None, description="Maximum number of starts per second, minute or hour, such as `100/m`; or `none`."
    )


class QueueDeclaration(DefinitionModel):
    """A queue as in a definition file; options left out keep their values."""

    name: str = Field(max_length=64)
    max_running: int | Literal["none"] | None = Field(
        default=None, description="Maximum number of tasks that run at the same time, over all workers; or `none`."
    )
    rate_limit: str | None = Field(
        default=None, description="Maximum number of starts per second, minute or hour, such as `100/m`; or `none`."
    )
    paused: bool | None = None
    reason: str | None = Field(default=None, max_length=1000, description="Reason of the pause.")


class DefinitionDocument(DefinitionModel):
    """Content of a definition file. Extensions add further lists."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "schedules": [{"name": "nightly", "cron": "0 2 * * *", "steps": [{"job": "hr_import"}]}],
                    "groups": [{"name": "billing", "max_active": 10}],
                    "queues": [{"name": "mail", "max_running": 20, "rate_limit": "100/m"}],
                }
            ]
        },
    )

    schedules: list[ScheduleDeclaration] | None = None
    manifests: list[ManifestDeclaration] | None = None
    groups: list[GroupDeclaration] | None = None
    queues: list[QueueDeclaration] | None = None
