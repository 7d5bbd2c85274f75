"""The extensions of an app: discovery, compatibility, and isolation of their errors.

An extension that cannot be used is named, logged once and reported by the doctor; everything else goes on without it.
Extensions are imported at first use, so a program that needs none of them does not import them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from tenuto.errors import EngineError, Invalid, MissingExtra, TenutoError, Unavailable
from tenuto.extension.contract import (
    AuditAction,
    Contribution,
    DefinitionList,
    EventOptions,
    EventSource,
    EventTopics,
    Extension,
    ExtensionFailure,
    ExtensionServices,
    MetricSource,
    Page,
    PageAssets,
    Panel,
    PartitionedTable,
    Retention,
    RouterEntry,
    SearchSource,
)
from tenuto.extension.contribution_checks import check_router, check_service, check_values
from tenuto.jobs.step_kind import StepKind
from tenuto.logs import Log
from tenuto.service.service_protocol import ProcessRole, Service
from tenuto.version import __version__

if TYPE_CHECKING:
    from datetime import datetime

    from tenuto.jobs.registry import Job, JobRegistry
    from tenuto.postgres.database import Database
    from tenuto.store import partitions

ENTRY_POINT_GROUP = "tenuto.extensions"
ISOLATION_TIMEOUT_SECONDS = 8.0
"""How long the core waits for the code of an extension: less than a subscriber waits for the event feed to start."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_RESERVED_NAMES = ("tenuto", "worker", "extensions")
_TIMEOUT_CODES = ("database.statement_timeout", "database.lock_timeout", "schema.tables.locked")
_CONDITION = re.compile(r"\s*(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)\s*")

_EXTENSION_ERRORS = (Exception, SystemExit)
"""What the code of an extension may raise; a module that calls `sys.exit` must not end the process."""

T = TypeVar("T")

log = Log("tenuto.extensions")


def _no_services(extension: Extension) -> ExtensionServices:
    raise Invalid(f"the extension {extension.name!r} is used without an app", code="extension.no_app")


class ExtensionRegistry:
    """The extensions of one app."""

    def __init__(
        self,
        given: Iterable[Extension] = (),
        *,
        built_in: Sequence[Extension] = (),
        disabled: Callable[[], Sequence[str]] = lambda: (),
        create_services: Callable[[Extension], ExtensionServices] = _no_services,
        timeout_seconds: float = ISOLATION_TIMEOUT_SECONDS,
    ) -> None:
        """``given`` have priority over installed ones; ``disabled`` returns the names of those that are not loaded.
        ``built_in`` are those of Tenuto itself."""
        self._built_in = tuple(built_in)
        self.create_services = create_services
        self.timeout_seconds = timeout_seconds
        self._given = tuple(given)
        self._disabled = disabled
        self._lock = threading.RLock()
        self._extensions: tuple[Extension, ...] | None = None
        self._failures: dict[tuple[str, str], ExtensionFailure] = {}
        self._owners_by_kind: dict[str, Extension] = {}

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """The usable extensions besides those of Tenuto itself; the first access imports them."""
        with self._lock:
            if self._extensions is None:
                self._extensions = tuple(self._load())
            return self._extensions

    @property
    def failures(self) -> list[ExtensionFailure]:
        """What could not be used so far."""
        return list(self._failures.values())

    def names(self) -> set[str]:
        """Return the names of all extensions, without importing installed ones."""
        return {getattr(each, "name", "") for each in self._given} | {each.name for each in find_entry_points()}

    def find(self, name: str) -> Extension | None:
        """Return the extension with this name, if it is usable."""
        own = next((each for each in self._built_in if each.name == name), None)
        return own or next((each for each in self.extensions if each.name == name), None)

    def is_built_in(self, extension: Extension) -> bool:
        """Return whether the extension is part of Tenuto."""
        return extension in self._built_in

    def collect(self, part: str, contribute: Callable[[Extension], Iterable[T]]) -> list[Contribution[T]]:
        """Return what the extensions contribute; an extension whose code fails contributes nothing to this part."""
        found: list[Contribution[T]] = []
        for extension in (*self._built_in, *self.extensions):
            try:
                found += [Contribution(extension, value) for value in contribute(extension)]
            except _EXTENSION_ERRORS as error:  # the core and other extensions go on
                self.report_failure(extension.name, part, error)
        return found

    def check(self, extension: Extension, values: Iterable[object], kind: type[T]) -> list[T]:
        """Return what an extension contributes; raise an error if a value has another type, or a name that does not
        belong to the extension."""
        return check_values(extension, values, kind, owns_names=not self.is_built_in(extension))

    @contextmanager
    def isolate(self, extension: Extension, part: str) -> Iterator[None]:
        """Report errors of the block as a failure of the extension, and continue after it; raise connection errors."""
        try:
            yield
            self.clear_failure(extension.name, part)
        except _EXTENSION_ERRORS as error:  # the core and other extensions go on
            # The extension is not to blame for the connection, but for a slow statement.
            if isinstance(error, Unavailable) and error.code not in _TIMEOUT_CODES:
                raise
            self.report_failure(extension.name, part, error)

    @contextmanager
    def collect_problems(self, extension: Extension, action: str, problems: list[str]) -> Iterator[None]:
        """Add an error of the block to ``problems``, with the name of the extension, and continue after it. Errors of
        Tenuto are raised: they concern the input or the database, and have a remedy."""
        try:
            yield
        except TenutoError:
            raise
        except _EXTENSION_ERRORS as error:  # the core and other extensions go on
            problems.append(f"the extension {extension.name!r} cannot {action}: {type(error).__name__}: {error}")

    @asynccontextmanager
    async def isolate_async(self, extension: Extension, part: str) -> AsyncIterator[None]:
        """Isolate a block that awaits code of an extension: as `isolate`, with a time limit."""
        with self.isolate(extension, part):
            async with self.limit_time():
                yield

    @asynccontextmanager
    async def limit_time(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Cancel the block, and raise an error, if it takes longer than the core waits for an extension."""
        import asyncio  # not at the top: `tenuto --help` uses this module, and asyncio would double its time

        seconds = self.timeout_seconds if seconds is None else min(seconds, self.timeout_seconds)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():  # the extension's own
                raise
            raise EngineError(
                f"no answer within {seconds:g} seconds",
                code="extension.timeout",
                remedy="report it to the author of the extension, or disable the extension",
            ) from None

    def background_services(self, role: ProcessRole) -> list[Service]:
        """Return the background services of a process with this role. Their errors do not stop the process."""
        found = self.collect(
            "background services",
            lambda extension: [
                _IsolatedService(self, extension, check_service(service))
                for service in extension.background_services(role, self.create_services(extension))
            ],
        )
        return [each.value for each in found]

    def retention(self) -> list[Retention]:
        """Return the records that housekeeping deletes."""
        found = self.collect("retention", lambda extension: self.check(extension, extension.retention(), Retention))
        return [self._isolate_retention(each.extension, each.value) for each in found]

    def _isolate_retention(self, extension: Extension, retention: Retention) -> Retention:
        """Name the extension, and limit the time of a batch; housekeeping isolates the errors."""

        async def delete_batch(database: Database, cutoff: datetime, limit: int) -> int:
            async with self.limit_time():
                return await retention.delete_batch(database, cutoff, limit)

        return replace(
            retention,
            name=f"{extension.name}: {retention.name}",
            delete_batch=retention.delete_batch if self.is_built_in(extension) else delete_batch,
        )

    def register_step_kinds(self, jobs: JobRegistry) -> None:
        """Register the kinds of steps."""
        for each in self.collect(
            "step kinds",
            lambda extension: self.check(extension, extension.step_kinds(self.create_services(extension)), StepKind),
        ):
            try:
                jobs.add_kind(each.value)
                self._owners_by_kind[each.value.name] = each.extension
            except Invalid as error:
                self.report_failure(each.extension.name, "step kinds", error)

    def describe_step_kinds(self, jobs: JobRegistry, describe: Callable[[str, Job[..., Any]], T]) -> dict[str, T]:
        """Return a description of each step kind, of the core and of extensions, by name. A kind of an extension that
        fails is left out."""
        jobs.load_more_kinds()
        found: dict[str, T] = {}
        for kind in sorted(jobs.handlers_by_kind):
            owner = self._owners_by_kind.get(kind)
            with nullcontext() if owner is None else self.isolate(owner, f"step kind {kind}"):
                found[kind] = describe(kind, jobs.handlers_by_kind[kind])
        return found

    def event_topics(self) -> list[Contribution[EventTopics]]:
        """Return the topics of the event feed."""
        return self.collect(
            "event topics", lambda extension: self.check(extension, extension.event_topics(), EventTopics)
        )

    def event_sources(self, options: EventOptions) -> list[Contribution[EventSource]]:
        """Create the sources of the event feed."""
        return self.collect(
            "event topics",
            lambda extension: [
                topics.create_source(options) for topics in self.check(extension, extension.event_topics(), EventTopics)
            ],
        )

    def metrics(self) -> list[Contribution[MetricSource]]:
        """Return the sources of metrics."""
        return self.collect("metrics", lambda extension: self.check(extension, extension.metrics(), MetricSource))

    def definition_lists(self) -> list[Contribution[DefinitionList[Any]]]:
        """Return the lists of definition files. If two extensions have the same list, the first is used."""
        owners: dict[str, str] = {}

        def contribute(extension: Extension) -> list[DefinitionList[Any]]:
            found: list[DefinitionList[Any]] = self.check(extension, extension.definition_lists(), DefinitionList)
            for each in found:
                if each.name in owners:
                    raise Invalid(
                        f"the list {each.name!r} of definition files belongs to the extension {owners[each.name]!r}",
                        code="extension.list.duplicate",
                        remedy="disable one of the extensions",
                    )
            owners.update({each.name: extension.name for each in found})
            return found

        return self.collect("definition lists", contribute)

    def partitioned_tables(self) -> list[partitions.PartitionedTable]:
        """Return the tables that are partitioned by month or day."""
        from tenuto.store import partitions  # not for `tenuto --help`: it imports the driver

        return [
            each.value
            for each in self.collect(
                "partitioned tables",
                lambda extension: [
                    partitions.PartitionedTable(f"tenuto_{extension.name}", table.table, table.key, table.cutoff)
                    for table in self.check(extension, extension.partitioned_tables(), PartitionedTable)
                ],
            )
        ]

    def pages(self) -> list[Contribution[Page]]:
        """Return the pages of the dashboard."""
        return self.collect("pages", lambda extension: self.check(extension, extension.pages(), Page))

    def panels(self) -> list[Contribution[Panel]]:
        """Return the parts of other pages of the dashboard."""
        return self.collect("panels", lambda extension: self.check(extension, extension.panels(), Panel))

    def searches(self) -> list[Contribution[SearchSource]]:
        """Return the sources of the search."""
        return self.collect("searches", lambda extension: self.check(extension, extension.searches(), SearchSource))

    def page_assets(self) -> list[Contribution[PageAssets]]:
        """Return the folders with templates and static files."""

        def contribute(extension: Extension) -> list[PageAssets]:
            assets = extension.page_assets()
            if assets is not None and not assets.templates.is_dir():
                raise Invalid(
                    f"the folder {assets.templates} does not exist",
                    code="extension.templates.missing",
                    remedy="reinstall the extension",
                )
            return [] if assets is None else [assets]

        return self.collect("page assets", contribute)

    def audit_actions(self) -> list[AuditAction]:
        """Return the actions that the operations of extensions record in the audit log."""
        found = self.collect("audit actions", lambda each: self.check(each, each.audit_actions(), AuditAction))
        return [each.value for each in found]

    def try_all_parts(self) -> None:
        """Ask every extension for all that it contributes, so that `failures` is complete."""
        parts: dict[str, Callable[[Extension], Iterable[object]]] = {
            "settings": lambda each: [self.create_services(each).get_section()],
            "partitioned tables": lambda each: self.check(each, each.partitioned_tables(), PartitionedTable),
            "step kinds": lambda each: [
                kind.create_job().input_schema()
                for kind in self.check(each, each.step_kinds(self.create_services(each)), StepKind)
            ],
            "operations": lambda each: [each.operations(self.create_services(each))],
            "routers": lambda each: [
                check_router(resolve_target(router.target)) for router in self.check(each, each.routers(), RouterEntry)
            ],
            "commands": lambda each: [resolve_target(command.target) for command in each.commands()],
            "pages": lambda each: [resolve_target(page.load) for page in self.check(each, each.pages(), Page)],
            "panels": lambda each: [resolve_target(panel.load) for panel in self.check(each, each.panels(), Panel)],
            "searches": lambda each: [
                resolve_target(source.load) for source in self.check(each, each.searches(), SearchSource)
            ],
            "page assets": lambda each: [each.page_assets()],
            "retention": lambda each: self.check(each, each.retention(), Retention),
            "audit actions": lambda each: self.check(each, each.audit_actions(), AuditAction),
        }
        self.event_sources(EventOptions())
        self.metrics()
        self.definition_lists()
        for part, contribute in parts.items():
            self.collect(part, contribute)

    def report_failure(
        self, extension: str, part: str, error: BaseException, remedy: str | None = None, **context: str
    ) -> None:
        """Log a failure once, with ``context``, and keep it for the doctor. Without its extra, a contribution has not
        failed."""
        if isinstance(error, MissingExtra):
            return
        problem = error.message if isinstance(error, TenutoError) else f"{type(error).__name__}: {error}"
        known_remedy = error.remedy if isinstance(error, TenutoError) else None
        failure = ExtensionFailure(
            extension, part, problem, remedy or known_remedy or f"upgrade or uninstall the extension {extension}"
        )
        if self._failures.get((extension, part)) != failure:
            self._failures[extension, part] = failure
            log.error(
                "extension failed", extension=extension, part=part, error=problem, remedy=failure.remedy, **context
            )

    def explain_missing_kind(self, kind: str) -> str | None:
        """Return why the extension whose name begins this step kind cannot be used; None if it can, or is unknown."""
        found = (each for each in self._failures.values() if kind.startswith(f"{each.extension}."))
        failure = next((each for each in found if each.part in ("loading", "step kinds")), None)
        return None if failure is None else f"the extension {failure.extension!r} failed: {failure.problem}"

    def clear_failure(self, extension: str, part: str) -> None:
        """Forget a failure whose cause has been removed."""
        self._failures.pop((extension, part), None)

    # --- loading ----------------------------------------------------------------------------------------------------

    def _load(self) -> Iterator[Extension]:
        names = {each.name for each in self._built_in}
        installed = find_entry_points()
        disabled = set(self._disabled()) if installed or self._given else set()
        for label, create in self._candidates(installed, disabled):
            try:
                extension = create()
                _check_extension(extension)
                if extension.name in names:
                    raise Invalid(
                        f"two extensions are named {extension.name!r}",
                        code="extension.name.duplicate",
                        remedy="uninstall one of them",
                    )
            except _EXTENSION_ERRORS as error:  # the core and other extensions go on
                self.report_failure(label, "loading", error)
                continue
            if extension.name not in disabled:
                names.add(extension.name)
                yield extension

    def _candidates(
        self, installed: Sequence[EntryPoint], disabled: set[str]
    ) -> Iterator[tuple[str, Callable[[], Extension]]]:
        for extension in self._given:
            yield getattr(extension, "name", "") or type(extension).__name__, partial(_given_extension, extension)
        for entry_point in installed:
            if entry_point.name not in disabled:
                yield entry_point.name, partial(load_extension, entry_point)


class _IsolatedService:
    """A service of an extension whose errors are reported and do not stop the process."""

    def __init__(self, registry: ExtensionRegistry, extension: Extension, service: Service) -> None:
        self.name = service.name
        self.is_optional = not registry.is_built_in(extension)
        """Whether the process is ready without it."""
        self._registry = registry
        self._extension = extension
        self._service = service

    @property
    def is_ready(self) -> bool:
        try:
            return bool(self._service.is_ready)
        except _EXTENSION_ERRORS as error:  # the core and other extensions go on
            self._report(error)
            return False

    async def start(self) -> None:
        try:
            async with self._registry.limit_time():
                await self._service.start()
        except _EXTENSION_ERRORS as error:  # the process starts without it
            self._report(error)

    async def stop(self) -> None:
        try:
            async with self._registry.limit_time():
                await self._service.stop()
        except _EXTENSION_ERRORS as error:  # the other services must stop too
            self._report(error)

    def _report(self, error: BaseException) -> None:
        self._registry.report_failure(self._extension.name, f"background service {self.name}", error)


def find_entry_points() -> list[EntryPoint]:
    """Return the entry points of all installed extensions, by name."""
    return sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda each: each.name)


def load_extension(entry_point: EntryPoint) -> Extension:
    """Import the extension of an entry point: an `Extension` object or class."""
    found: Any = entry_point.load()
    extension = found() if isinstance(found, type) else found
    if not isinstance(extension, Extension):
        raise Invalid(
            f"{entry_point.value} is of type {type(extension).__name__}, not an extension",
            code="extension.invalid",
            remedy="let the entry point name a subclass of tenuto.extension.Extension",
        )
    if extension.name != entry_point.name:
        raise Invalid(
            f"the extension is named {extension.name!r}, but its entry point {entry_point.name!r}",
            code="extension.name.conflict",
            remedy="give both the same name",
        )
    if not extension.requires_tenuto.strip():
        raise Invalid(
            "it does not declare which versions of Tenuto it works with",
            code="extension.version.missing",
            field="requires_tenuto",
            remedy=f'set `requires_tenuto = ">=X,<Y"` in the extension {extension.name}; this is Tenuto {__version__}',
        )
    return extension


def _given_extension(extension: object) -> Extension:
    if not isinstance(extension, Extension):
        raise Invalid(
            f"{extension!r} is not an extension",
            code="extension.invalid",
            remedy="pass objects of subclasses of tenuto.extension.Extension",
        )
    return extension


def _check_extension(extension: Extension) -> None:
    if not _NAME.fullmatch(extension.name) or extension.name in _RESERVED_NAMES:
        raise Invalid(
            f"{extension.name!r} cannot be the name of an extension",
            code="extension.name.invalid",
            field="name",
            remedy="use up to 40 lower-case letters, digits and underscores",
        )
    if not is_compatible(extension.requires_tenuto, __version__):
        raise Invalid(
            f"it requires Tenuto {extension.requires_tenuto}, and this is {__version__}",
            code="extension.version.incompatible",
            field="requires_tenuto",
            remedy=f"install a version of the extension {extension.name} for Tenuto {__version__}",
        )


def is_compatible(required: str, version: str) -> bool:
    """Return whether a version meets conditions such as ``>=0.1,<0.2``; pre-releases count as their release."""
    actual = _release(version)
    for condition in filter(str.strip, required.split(",")):
        match = _CONDITION.fullmatch(condition)
        if match is None:
            raise Invalid(
                f"{condition.strip()!r} is not a version condition",
                code="extension.version.invalid",
                field="requires_tenuto",
                remedy="write it like >=0.1,<0.2",
            )
        wanted = _release(match[2])
        comparison = (actual > wanted) - (actual < wanted)
        allowed = {">=": (0, 1), "<=": (0, -1), "==": (0,), "!=": (1, -1), "<": (-1,), ">": (1,)}[match[1]]
        if comparison not in allowed:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    return tuple((numbers + [0] * 4)[:4])


def resolve_target(target: str) -> Any:
    """Import ``module:attribute``."""
    module, _, attribute = target.partition(":")
    found: Any = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found
