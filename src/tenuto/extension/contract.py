"""The contract for extensions: what an extension may contribute, as values and protocols.

An extension is a subclass of `Extension` that overrides what it needs. Tenuto finds it by the entry point group
``tenuto.extensions`` or in ``Tenuto(extensions=[…])``. This module imports nothing heavy, so that ``tenuto --help`` may
ask all installed extensions for their commands.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from tenuto.errors import Invalid
from tenuto.jobs.step_kind import StepKind
from tenuto.model.doctor_findings import Finding
from tenuto.service.service_protocol import ProcessRole, Service

if TYPE_CHECKING:
    from uuid import UUID

    from pydantic import BaseModel

    from tenuto.jobs.context import Context
    from tenuto.jobs.registry import JobRegistry
    from tenuto.model.access.actors import Actor, Role
    from tenuto.model.access.operation_context import OperationCaller
    from tenuto.model.access.secrets import TextOrSecret
    from tenuto.postgres.database import Connection, Database
    from tenuto.settings import Settings

S = TypeVar("S", bound="BaseModel")
D = TypeVar("D")
T = TypeVar("T")


# --- services for extensions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExtensionServices:
    """Services of Tenuto for an extension."""

    open_database: Callable[[], Awaitable[Database]]
    """Returns the database; an error if the schema of the extension does not fit."""
    get_settings: Callable[[], Settings]
    get_section: Callable[[], BaseModel | None]
    """Returns the settings section of the extension, an instance of the class that `Extension.settings` returns."""
    jobs: JobRegistry
    caller: OperationCaller
    """On whose behalf the operations run; `app.acting_as` binds them to another caller."""
    reveal_secret: Callable[[Context, TextOrSecret], Awaitable[str]]
    """Returns the text of a secret; it is redacted from then on in everything the attempt leaves behind."""
    connect: Callable[[], Awaitable[Database]]
    """Opens a separate database, which the caller closes. The schema may not fit: no version is checked."""
    extensions: ExtensionSet
    """All extensions of the app, for an extension that uses what others contribute."""

    def section(self, kind: type[S]) -> S:
        """Return the settings section of the extension."""
        found = self.get_section()
        if not isinstance(found, kind):
            raise Invalid(
                f"the settings section of the extension is not of type {kind.__name__}",
                code="extension.settings.type",
                remedy=f"return {kind.__name__} from Extension.settings()",
            )
        return found


@dataclass(frozen=True, slots=True)
class Contribution(Generic[T]):
    """A value that an extension contributes."""

    extension: Extension
    value: T


@dataclass(frozen=True, slots=True)
class ExtensionFailure:
    """Why an extension, or one of its contributions, is not used."""

    extension: str
    part: str
    """``loading``, or the contribution that failed, such as ``routers``."""
    problem: str
    remedy: str


class ExtensionSet(Protocol):
    """The extensions of an app."""

    @property
    def extensions(self) -> Sequence[Extension]:
        """The usable extensions besides those of Tenuto itself."""

    @property
    def failures(self) -> Sequence[ExtensionFailure]:
        """What could not be used so far."""

    def is_built_in(self, extension: Extension) -> bool:
        """Return whether the extension is part of Tenuto."""

    def create_services(self, extension: Extension) -> ExtensionServices:
        """Return what Tenuto gives to an extension."""

    def collect(self, part: str, contribute: Callable[[Extension], Iterable[T]]) -> list[Contribution[T]]:
        """Return what the extensions contribute, those of Tenuto first. An extension whose code fails contributes
        nothing to this part."""

    def try_all_parts(self) -> None:
        """Ask every extension for all that it contributes, so that `failures` is complete."""


class CallerOperations(Protocol):
    """Operations on behalf of a caller: a subclass of `tenuto.operations.bound_operation.OperationGroup`."""

    def for_caller(self, caller: OperationCaller) -> CallerOperations:
        """Return the same operations for another caller."""


# --- contributions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command or a group of commands directly under ``tenuto``, imported when it is called."""

    name: str
    section: str
    """Heading in ``tenuto --help``."""
    help: str
    """First line of its help."""
    target: str
    """``module:attribute`` of the click command or group, or of a function made a command by `tenuto.cli.command`."""


@dataclass(frozen=True, slots=True)
class RouterEntry:
    """A FastAPI router, mounted under ``/api/v1/NAME``. Its routes declare a role (`api.security.authentication`)."""

    target: str
    """``module:attribute`` of the router; imported when the web service starts."""
    prefix: str | None = None
    """Path before those of the routes; ``/api/v1/NAME`` if None. Only extensions of Tenuto itself have another one."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Argument of the function of a page, a panel or a search."""

    operations: Any
    """The operations of the extension on behalf of the viewer; None if it has none."""
    role: Role
    """Role of the viewer. The operations do not check it: a page shows nothing beyond its role."""
    now: datetime
    zone_name: str = "UTC"
    """Time zone of the viewer."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters in the path of the page."""
    query: Mapping[str, str] = field(default_factory=dict)
    """The query parameters that the page declares, as far as they are given."""
    subject: Any = None
    """What the page around a panel shows: see `Panel.place`."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the dashboard, at ``/NAME/PATH``."""

    path: str
    """Path below the name of the extension; parameters in braces: ``systems/{system}``. Empty for ``/NAME``."""
    title: str
    """Title; parameters of the path in braces: ``System {system}``."""
    load: str
    """``module:function`` of an async function: `PageRequest` → model of the page. It raises `NotFound` for an object
    that does not exist, and `Invalid` for a wrong query parameter."""
    template: str
    """Template of the page, in the templates of the extension: ``x`` is the model. It extends ``layout.html``."""
    navigation: str | None = None
    """Group of the sidebar that shows the page; None for a page that others link to."""
    role: Role | None = None
    """Role that the page requires; viewer if None."""
    topics: Sequence[str] = ()
    """Event topics that make the live parts of the page load again; ``page.topics`` in the template."""
    query: Sequence[str] = ()
    """Names of the query parameters, such as filters and the cursor."""
    parent: str | None = None
    """Path of the page of the same extension that the sidebar marks; by default the page itself."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of a page of the dashboard."""

    place: str
    """``overview``, ``execution``, ``task``, ``schedule`` or ``manifest``: a card on that page, with its record as
    subject (none on the overview). ``step:KIND``: a tab in the inspector of such a step, with a `StepSubject`."""
    title: str
    load: str
    """``module:function``, as for a page. The panel is not shown if it returns None."""
    template: str
    """Template of the content of the panel; it gets the model as ``x``."""
    role: Role | None = None
    """Role that sees the panel; viewer if None."""
    topics: Sequence[str] = ()
    """Event topics that make the panel load again, besides those of the page."""


@dataclass(frozen=True, slots=True)
class StepSubject:
    """The step that the inspector of an execution shows."""

    execution_id: UUID
    name: str
    kind: str
    task_id: UUID | None
    activity_id: UUID | None
    """The attempt that is shown; None before the first one."""
    is_running: bool


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object that the search of an extension has found."""

    kind: str
    """Kind in plain English, such as ``item``."""
    name: str
    path: str
    """Path of its page, such as ``/inventory/items/bolt``."""
    state: str | None = None
    id: UUID | None = None


@dataclass(frozen=True, slots=True)
class SearchSource:
    """A source of the search by ``Ctrl K``, ``tenuto search`` and ``/api/v1/search``."""

    load: str
    """``module:function`` of an async function: `PageRequest` with ``query["q"]`` → objects, at most 20."""


@dataclass(frozen=True, slots=True)
class PageAssets:
    """Folders with the templates and the static files of an extension's pages."""

    templates: Path
    static: Path | None = None
    """Files with the endings ``.css``, ``.js`` and ``.svg``: ``links.static(version, "NAME/FILE")``."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Records that housekeeping deletes when they are too old."""

    name: str
    """The records in log lines, such as ``dead letters``."""
    delete_batch: Callable[[Database, datetime, int], Awaitable[int]]
    """Deletes up to so many closed records that are older than the cut-off, and returns their number."""
    cutoff: Callable[[datetime, Settings], datetime] | None = None
    """Cut-off at an instant; by default the setting ``retention_days``."""


@dataclass(frozen=True, slots=True)
class PartitionedTable:
    """A table in the schema of the extension, partitioned by month or day. Housekeeping creates the coming
    partitions, and drops those that are past the retention.

    The migration creates it with ``PARTITION BY RANGE (column)`` and a default partition ``TABLE_default``. A month or
    day with rows in the default partition gets no partition; housekeeping deletes these rows after the retention.
    """

    table: str
    key: Literal["instant", "id"] = "instant"
    """Type of the column: ``timestamptz``, or ``uuid`` with the time in it (UUID 7)."""
    cutoff: Callable[[datetime, Settings], datetime] | None = None
    """Cut-off at an instant; by default the setting ``retention_days``."""


@dataclass(frozen=True, slots=True)
class Examination:
    """Argument of a check of the doctor."""

    database: Database
    """Opened for this examination. The schema may not fit: `services.open_database` raises an error in that case."""
    services: ExtensionServices


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check of ``tenuto doctor``. It changes nothing."""

    name: str
    run: Callable[[Examination], Awaitable[Finding]]
    is_prerequisite: bool = False
    """The other checks of the extension rely on it: they run after it, and not at all if it finds a problem."""
    applies_to: Callable[[Settings], bool] | None = None
    """Returns whether the check is useful with these settings; None for a check that always is."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change, as subscribers of the event feed receive it."""

    topic: str
    data: Any


class EventSource(Protocol):
    """Detects changes for the event feed. It may remember the state at the previous poll."""

    async def load(self, database: Database, since: datetime) -> Any:
        """Query the state, or the changes since an instant. A failed poll is repeated, so nothing is remembered yet."""

    def detect_changes(self, loaded: Any) -> Sequence[Event]:
        """Return the changes since the previous call, and remember what has been reported."""


@dataclass(frozen=True, slots=True)
class EventOptions:
    """Options for the use of a source by the feed."""

    is_catch_up: bool = False
    """The source is used for a single query over a long time, for a subscriber that returns."""
    max_changes: int = 5_000
    """More changes of a topic in one poll than this need not be reported one by one."""


@dataclass(frozen=True, slots=True)
class EventTopics:
    """Topics of the event feed and their source."""

    topics: tuple[str, ...]
    """Names that subscribers use; those of an extension begin with its name and a dot."""
    create_source: Callable[[EventOptions], EventSource]
    """Creates a source for a series of polls."""


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """A change with the instant at which it was made."""

    key: object
    """Identifies the change together with its instant."""
    at: datetime
    data: Any
    title: str | None = None
    """What happened, in one sentence; for notifications."""
    path: str | None = None
    """Path of the page of the dashboard that shows it."""


class ChangeLog:
    """An event source for changes that the database stores with their instants. Each is reported once."""

    def __init__(
        self, topic: str, load_changes: Callable[[Database, datetime], Awaitable[Sequence[LoggedChange]]]
    ) -> None:
        """``load_changes`` returns the changes since an instant."""
        self._topic = topic
        self._load_changes = load_changes
        self._reported: dict[tuple[object, datetime], None] = {}

    async def load(self, database: Database, since: datetime) -> Sequence[LoggedChange]:
        return await self._load_changes(database, since)

    def detect_changes(self, loaded: Sequence[LoggedChange]) -> Sequence[Event]:
        current = {(change.key, change.at): change for change in loaded}
        found = [Event(self._topic, change.data) for key, change in current.items() if key not in self._reported]
        self._reported = dict.fromkeys(current)  # older ones are not loaded again
        return found


@dataclass(frozen=True, slots=True)
class Metric:
    """Definition of one metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


LabelledValue = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class MetricSource:
    """Metrics of the installation that one query returns. Results are cached for some seconds."""

    metrics: tuple[Metric, ...]
    """Their names begin with ``tenuto_NAME_``."""
    load: Callable[[Connection], Awaitable[Mapping[str, Sequence[LabelledValue]]]]
    """Returns the values by metric, each with its label values; runs in a transaction with short timeouts."""


@dataclass(frozen=True, slots=True)
class AuditAction:
    """An action in the audit log."""

    name: str
    """Begins with the name of the extension and a dot: ``inventory.item.add``."""
    help: str


# --- lists in definition files --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One entry of a list in a definition file."""

    value: Any
    """The entry as plain data."""
    location: str
    """File, line and path."""


@dataclass(frozen=True, slots=True)
class ListChange:
    """Change that applying files would make to one object."""

    key: str
    effect: Literal["created", "changed", "deleted", "unchanged"]
    before: Any = None
    after: Any = None
    notes: Sequence[str] = ()
    """What the plan says about the change: how many objects it concerns."""

    @classmethod
    def compare(cls, key: str, before: Any, after: Any) -> ListChange:
        """Compare what is stored with what is declared; None if there is nothing."""
        if before == after:
            return cls(key, "unchanged", before, after)
        return cls(key, "created" if before is None else "deleted" if after is None else "changed", before, after)

    @property
    def differences(self) -> dict[str, tuple[Any, Any]]:
        """The fields that differ, as (stored, declared)."""
        if not isinstance(self.before or {}, Mapping) or not isinstance(self.after or {}, Mapping):
            return {} if self.before == self.after else {"value": (self.before, self.after)}
        before, after = self.before or {}, self.after or {}
        return {
            name: (before.get(name), after.get(name))
            for name in {**before, **after}
            if before.get(name) != after.get(name)
        }


@dataclass(frozen=True, slots=True)
class ListPlan:
    """Changes that applying files would make to one list."""

    changes: Sequence[ListChange] = ()

    @property
    def has_changes(self) -> bool:
        return any(change.effect != "unchanged" for change in self.changes)


@dataclass(frozen=True, slots=True)
class ChangeAuthor:
    """The author of applied changes, the instant and the reason."""

    actor: Actor
    now: datetime
    reason: str | None = None


CORE_LISTS = ("schedules", "manifests", "groups", "queues")
"""The lists of definition files that belong to Tenuto."""


@dataclass(frozen=True, slots=True)
class DefinitionList(Generic[D]):
    """A top-level list of definition files, planned and applied with the schedules and manifests of the same files."""

    name: str
    """Name of the list in the file: ``systems``. No two extensions have a list of the same name."""
    parse: Callable[[ListEntry], D]
    """Returns the declaration; raises `Invalid` with the field at fault."""
    key: Callable[[D], str]
    """Returns the key of a declaration; keys are unique in all files."""
    plan: Callable[[Connection, Sequence[D], bool], Awaitable[ListPlan]]
    """Compares declarations with the database; with True, objects of files that are no longer declared are deleted."""
    apply: Callable[[Connection, ListPlan, ChangeAuthor], Awaitable[None]]
    """Makes the changes in the transaction of all lists; raises `Conflict` if the database has changed since the plan.
    It runs again if the transaction is repeated. The audit entry contains ``before`` and ``after`` of the plan."""
    check: Callable[[Connection, D, Mapping[str, Sequence[Any]]], Awaitable[None]] | None = None
    """Checks one declaration against the database and against all declarations of the same files, given by list; raises
    `Invalid` with the field at fault. None if `parse` checks everything."""


@dataclass(frozen=True, slots=True)
class PlanPreview:
    """What would follow from applying definition files."""

    text: str
    document: Mapping[str, Any]
    """The same for ``-o json``."""
    has_failed: bool = False
    """The preview is incomplete; the text says why."""


# --- the extension --------------------------------------------------------------------------------------------------


class Extension:
    """An optional part of Tenuto. Subclasses set ``name`` and override what they contribute."""

    name: str = ""
    """Prefix of settings, schema, routes, topics and audit actions: lower-case letters, digits and underscores."""
    requires_tenuto: str = ""
    """Versions of Tenuto that the extension works with: ``>=0.1,<0.2``. An installed extension must declare them."""

    def settings(self) -> type[BaseModel] | None:
        """The settings section: the table ``[NAME]`` of ``tenuto.toml`` and variables ``TENUTO_NAME_…``."""
        return None

    def migrations(self) -> Path | None:
        """The folder with the migrations of the schema ``tenuto_NAME``, named like ``0001_items.sql``."""
        return None

    def partitioned_tables(self) -> Sequence[PartitionedTable]:
        """Tables that are partitioned by month or day."""
        return ()

    def step_kinds(self, services: ExtensionServices) -> Sequence[StepKind]:
        """Kinds of steps, for workers and for saving schedules."""
        return ()

    def operations(self, services: ExtensionServices) -> CallerOperations | None:
        """The operations ``app.extensions.NAME``: ``Operations(services.open_database, services.caller)``, a subclass
        of `tenuto.operations.bound_operation.OperationGroup`. Each operation that changes rows begins with `_begin` and
        an action of `audit_actions`; the audit log records it for its caller."""
        return None

    def routers(self) -> Sequence[RouterEntry]:
        """HTTP routes under ``/api/v1/NAME``."""
        return ()

    def commands(self) -> Sequence[CommandEntry]:
        """Commands of ``tenuto``. They must be found by the entry point, because no app is known before."""
        return ()

    def pages(self) -> Sequence[Page]:
        """Pages of the dashboard."""
        return ()

    def panels(self) -> Sequence[Panel]:
        """Parts of other pages of the dashboard."""
        return ()

    def searches(self) -> Sequence[SearchSource]:
        """Sources of the search."""
        return ()

    def page_assets(self) -> PageAssets | None:
        """Templates and static files of the pages and panels."""
        return None

    def background_services(self, role: ProcessRole, services: ExtensionServices) -> Sequence[Service]:
        """Background services of a process with this role."""
        return ()

    def retention(self) -> Sequence[Retention]:
        """Records that are deleted when they are too old."""
        return ()

    def doctor_checks(self) -> Sequence[DoctorCheck]:
        """Checks of ``tenuto doctor``."""
        return ()

    def event_topics(self) -> Sequence[EventTopics]:
        """Topics of the event feed."""
        return ()

    def metrics(self) -> Sequence[MetricSource]:
        """Metrics of the installation."""
        return ()

    def audit_actions(self) -> Sequence[AuditAction]:
        """Actions that the operations record in the audit log."""
        return ()

    async def preview_plan(self, app: Any, declared: Mapping[str, Sequence[Any]], prune: bool) -> PlanPreview | None:
        """Find out what would follow from applying definition files, for ``tenuto plan --preview``; None if the
        extension has no preview. ``app`` is the `Tenuto` of the caller, ``declared`` the entries of the lists of all
        extensions as plain data. With ``prune``, objects of files that are no longer declared are deleted. The caller
        has no time limit: an extension that waits for a worker needs its own."""
        return None

    def definition_lists(self) -> Sequence[DefinitionList[Any]]:
        """Further top-level lists in definition files."""
        return ()
