"""Settings, read once, in this precedence: arguments, environment (``TENUTO_…``), settings file, defaults.

The file is ``tenuto.toml`` in the working directory or the one named by ``TENUTO_CONFIG``. Worker settings are
``TENUTO_WORKER_…`` and the table ``[worker]``. Empty strings count as unset in every source; the next source in
precedence applies. Tables that are no settings of Tenuto are the sections of extensions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote_plus

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tenuto.errors import Invalid
from tenuto.paths import default_home, expand_path, read_settings_file, settings_file_path

S = TypeVar("S", bound=BaseSettings)


class _EnvironmentSource(EnvSettingsSource):
    """Environment variables; tables are written as JSON."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except (ValueError, RecursionError):  # the message omits the value: it may contain a password
            raise Invalid(
                f"{self.env_prefix}{field_name.upper()} is not valid JSON",
                code="settings.value.invalid",
                field=field_name,
                remedy='write it like {"hr": {"url": "postgresql://…"}}',
            ) from None


class _FileSource(InitSettingsSource):
    """Settings file: the table ``[worker]`` for a worker, the top level and further tables for everything else."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        top = read_settings_file()
        worker = top.pop("worker", {})
        if not isinstance(worker, dict):
            raise Invalid(
                "the setting 'worker' must be a table",
                code="settings.value.invalid",
                field="worker",
                remedy=f"write [worker] in {settings_file_path()}",
            )
        if issubclass(settings_cls, WorkerSettings):
            super().__init__(settings_cls, _drop_empty(worker))
            return
        sections = _find_sections(top)
        super().__init__(
            settings_cls, _drop_empty({name: value for name, value in top.items() if name not in sections})
        )


def _find_sections(top: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables of a settings file that belong to extensions."""
    own = {"worker", *Settings.model_fields}
    return {name: table for name, table in top.items() if isinstance(table, dict) and name not in own}


def _drop_empty(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None and value != ""}


ExecutorName = Literal["native", "celery", "dask", "ray"]


class WorkerSettings(BaseSettings):
    """Settings of a worker."""

    model_config = SettingsConfigDict(env_prefix="TENUTO_WORKER_", env_ignore_empty=True, frozen=True, extra="forbid")

    queues: Annotated[tuple[str, ...], NoDecode, Field(min_length=1)] = ("default",)
    """Queues that the worker serves."""
    slots: int = Field(100, ge=1, le=10_000)
    """Maximum number of attempts that run at the same time."""
    claim_batch: int = Field(500, ge=1, le=5_000)
    """Maximum number of tasks claimed in one statement."""
    lease_seconds: float = Field(30.0, ge=1, le=3600)
    """Time after which the tasks of a worker without heartbeat are given to others."""
    poll_seconds: float = Field(2.0, ge=0.05, le=60)
    """Interval between polls of the queues when no notification arrives."""
    grace_seconds: float = Field(25.0, ge=0, le=86_400)
    """Time that running attempts get to finish after SIGTERM."""
    name: str | None = None
    """Worker name that stays the same across restarts; by default the first free one of HOST-1, HOST-2 …"""
    executor: ExecutorName = "native"
    """What runs the code of jobs: the worker itself (native), or a cluster."""
    executor_address: str | None = Field(None, repr=False)
    """Address of that cluster: the scheduler of Dask, the broker of Celery, or the head node of Ray."""
    executor_callback: str | None = None
    """HOST or HOST:PORT at which the processes of the cluster reach the worker; by default its address towards it."""
    queue_executors: Annotated[dict[str, ExecutorName], NoDecode] = {}
    """Executors of single queues, as in ``gpu=ray,reports=dask``. All queues of one worker have the same executor."""

    @field_validator("queue_executors", mode="before")
    @classmethod
    def _split_pairs(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [part.strip() for part in value.split(",") if part.strip()]
        if wrong := [pair for pair in pairs if not all(map(str.strip, pair.partition("=")))]:
            raise ValueError(f"{wrong[0]!r} is not QUEUE=EXECUTOR")
        return {queue.strip(): executor.strip() for queue, _, executor in (pair.partition("=") for pair in pairs)}

    @field_validator("queues", mode="before")
    @classmethod
    def _split_at_commas(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, _FileSource(settings_cls)


class ConnectionSettings(BaseModel):
    """A database on which steps may run SQL scripts."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str | dict[str, str] = Field(repr=False)
    """URL with the login for the scripts, or ``{ secret = "NAME" }``."""
    driver: str | None = None
    """Name of the driver; by default the scheme of the URL."""
    allow_privileged_login: bool = False
    """Allow a login that is a superuser, Tenuto's own, or able to change Tenuto's tables."""


class Settings(BaseSettings):
    """Settings of all processes."""

    model_config = SettingsConfigDict(
        env_prefix="TENUTO_", env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    database: str | None = Field(None, repr=False)
    """PostgreSQL URL; by default an embedded server in the home directory."""
    database_readonly: str | None = Field(None, repr=False)
    """PostgreSQL URL of a standby from which the web service reads lists, reports and pages."""
    database_readonly_max_staleness_seconds: float = Field(10.0, ge=0.1, le=3600)
    """Age of the state of that standby from which the web service reads from the primary instead."""
    home: Path = Field(default_factory=default_home)
    """Directory of the embedded database, the name locks and the health files."""
    behind_pooler: bool = False
    """The URL leads to a transaction pooler: no session state is used, and polling replaces notifications."""
    connect_seconds: float = Field(10.0, ge=0, le=600)
    """Time to retry an unreachable database; the command line uses 1, and services retry without limit."""
    dead_letter_note_required: bool = False
    """Require a note to resolve a dead letter."""
    past_one_shots: Literal["accept", "refuse"] = "accept"
    """Whether a one-shot with a past ``exec_at`` runs at once or is refused."""
    embedded_stop: Literal["when_unused", "never"] = "when_unused"
    """Whether the embedded server stops after its last user has disconnected."""
    sweep_seconds: float = Field(5.0, ge=0.1, le=600)
    """Interval at which each service searches for tasks of dead workers."""
    scheduler_poll_seconds: float = Field(30.0, ge=0.1, le=600)
    """Interval between polls of a scheduler without notification; it sends a heartbeat at least every 10 s."""
    housekeeping_seconds: float = Field(60.0, ge=0.1, le=3600)
    """Interval at which each service creates partitions and checks whether retention is due."""
    retention_days: float = Field(90.0, gt=0, le=36_500)
    """Minimum time that activities are kept; whole partitions are dropped together."""
    partition_period: Literal["month", "day"] | None = None
    """Length of partitions that are created; ``day`` for large numbers of records and a short retention."""
    event_retention_days: float = Field(30.0, gt=0, le=366)
    """Time that an event from outside is kept for a task that waits for it later, and that its id is recognised."""
    retention_interval_seconds: float = Field(6 * 3600.0, ge=1)
    """Interval at which each service drops expired records."""
    web_host: str = "127.0.0.1"
    """Address on which the web service listens; other than loopback only with TLS or behind a proxy."""
    web_port: int = Field(8321, ge=0, le=65_535)
    """Port of the web service; 0 takes any free one."""
    web_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Accepted values of the Host header besides loopback names; ``*`` for any."""
    web_behind_proxy: bool = False
    """A proxy terminates TLS and forwards the caller's address."""
    web_proxies: Annotated[tuple[str, ...], NoDecode] = ()
    """Addresses of that proxy; forwarded headers are trusted only from these."""
    web_user_header: str | None = None
    """Header in which the proxies of ``web_proxies`` name the user (``X-Forwarded-User``), instead of a login."""
    web_role_header: str | None = None
    """Header with the groups of that user, separated by commas; see ``web_roles``."""
    web_roles: Annotated[tuple[str, ...], NoDecode] = ()
    """Roles of those groups: ``GROUP=ROLE``. Without it, a group that has the name of a role gives this role."""
    web_user_role: Literal["viewer", "operator", "editor", "admin"] | None = None
    """Role of every user that the proxy names, unless a group gives a higher one."""
    web_tls_certificate: Path | None = None
    """Certificate file, for TLS without a proxy."""
    web_tls_key: Path | None = None
    """Private key file of the certificate."""
    web_path: str = ""
    """Path below which the web service is served, such as ``/ops/tenuto``; the proxy must pass it on."""
    base_url: str | None = None
    """Address of the dashboard for links in messages, such as ``https://tenuto.example.org``, with ``web_path``."""
    web_name: str = "Tenuto"
    """Name of the installation in the dashboard."""
    web_environment: Literal["none", "test", "prod"] = "none"
    """Environment that the dashboard shows beside the name."""
    web_hide_inputs: bool = False
    """Show inputs, outputs and logs in the dashboard to operators and above only."""
    api_rate_limit: float = Field(5000.0, ge=0, le=1_000_000)
    """Rate limit per caller and web service, in requests per second; 0 for none."""
    http_allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Host names and networks that HTTP steps and connectors may call although they are not public."""
    master_key: SecretStr | None = None
    """Key that encrypts secrets: 32 bytes in base64; older keys may follow, separated by spaces or commas."""
    master_key_file: Path | None = None
    """File with the master key, older keys below it; for the embedded database one is created in the home directory."""
    connections: dict[str, ConnectionSettings] = {}
    """Databases for SQL scripts by name: tables such as ``[connections.hr]`` with ``url``, in the environment as JSON.
    Connections of all sources are merged; each field of a connection comes from the first source that has it."""
    files_directory: Path | None = None
    """Only directory with SQL scripts and SQLite files for steps; by default ``files`` in the home directory."""
    programs: Annotated[tuple[Path, ...], NoDecode] = ()
    """Programs and scripts that steps may run: files, or directories of them; by default any."""
    program_variables: Annotated[tuple[str, ...], NoDecode] = ()
    """Environment variables that steps may set if ``programs`` is set, besides LANG, LC_* and TZ: names, or
    ``/path/of/program:NAME`` for one program only."""
    program_path: Annotated[tuple[Path, ...], NoDecode, Field(min_length=1)] = (
        Path("/usr/local/bin"),
        Path("/usr/bin"),
        Path("/bin"),
    )
    """Search path for programs named without a directory; also their ``PATH``."""
    metrics_public: bool = False
    """Serve ``/metrics`` without authentication; otherwise a viewer key is required."""
    metrics_port: int | None = Field(None, ge=0, le=65_535)
    """Port on which each service process serves ``/metrics``, ``/healthz`` and ``/readyz``; 0 for any free one."""
    metrics_host: str = "127.0.0.1"
    """Address for that port; other than loopback only with ``metrics_public``."""
    metrics_max_names: int = Field(50, ge=0, le=1000)
    """Number of jobs, of queues, of schedules and of manifests that have labels of their own in ``/metrics``."""
    ready_max_delay_seconds: float = Field(60.0, ge=1, le=86_400)
    """Maximum delay of a due schedule before ``/readyz`` reports not ready."""
    log_format: Literal["console", "json"] = "console"
    """Log format of services on stderr: text, or one JSON object per line."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum log level."""
    attempt_log: Literal["none", "failed", "all"] = "none"
    """Which ended attempts a worker writes as JSON lines, each with its error and its own log, for log collectors."""
    attempt_log_file: Path | None = None
    """File to which these lines are appended; it may be rotated. By default they go to stdout."""
    disabled_extensions: Annotated[tuple[str, ...], NoDecode] = ()
    """Installed extensions that are not loaded."""

    @field_validator(
        "web_hosts",
        "web_proxies",
        "web_roles",
        "http_allowed_hosts",
        "programs",
        "program_variables",
        "program_path",
        "disabled_extensions",
        mode="before",
    )
    @classmethod
    def _split_at_commas(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("database_readonly", mode="after")
    @classmethod
    def _check_primary_is_named(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("database") is None:
            raise ValueError("it needs the setting database: the embedded server has no standby")
        return value

    @field_validator("http_allowed_hosts", mode="after")
    @classmethod
    def _check_hosts_and_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", each) or re.fullmatch(r"[0-9.]+", each):
                ip_network(each.strip("[]"))
        return value

    @field_validator("web_roles", mode="after")
    @classmethod
    def _check_web_roles(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            group, _, role = each.rpartition("=")
            if not group or role not in ("viewer", "operator", "editor", "admin"):
                raise ValueError(f"{each!r} is not GROUP=ROLE with a role of viewer, operator, editor or admin")
        return value

    @field_validator("web_user_header", "web_role_header", mode="after")
    @classmethod
    def _check_header_name(cls, value: str | None) -> str | None:
        forbidden = ("authorization", "cookie", "host", "origin")
        if value is not None and (not re.fullmatch(r"[A-Za-z0-9-]{1,100}", value) or value.lower() in forbidden):
            raise ValueError(f"{value!r} is not the name of a header that a proxy may use for users")
        return value

    @field_validator("web_path", mode="after")
    @classmethod
    def _check_web_path(cls, value: str) -> str:
        if value and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+/?", value):
            raise ValueError(f"{value!r} is not a path such as /ops/tenuto")
        return value.rstrip("/")

    @field_validator("base_url", mode="after")
    @classmethod
    def _check_base_url(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^\s/?#@]+(/[A-Za-z0-9._~-]+)*/?", value):
            raise ValueError(f"{value!r} is not an address such as https://tenuto.example.org")
        return value and value.rstrip("/")

    @field_validator("programs", "program_path", mode="after")
    @classmethod
    def _check_paths_are_absolute(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        for path in value:
            if not path.is_absolute():
                raise ValueError(f"{path} is not an absolute path")
        return value

    @field_validator("home", mode="after")
    @classmethod
    def _expand_home(cls, value: Path) -> Path:
        return expand_path(value)

    def redacted(self) -> dict[str, Any]:
        """Return all settings as plain data without passwords and keys."""
        shown = self.model_dump(mode="json")
        for name in ("database", "database_readonly"):
            if shown[name] is not None:
                shown[name] = redact_password(shown[name])
        for connection in shown["connections"].values():
            if isinstance(connection["url"], str):
                connection["url"] = redact_password(connection["url"])
        return shown

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _EnvironmentSource(settings_cls), _FileSource(settings_cls)


def redact_password(url: str) -> str:
    """Return a database URL without its password; where the URL is ambiguous, remove more rather than less."""
    shown, upto = "", 0
    for start, end in sorted(_password_spans(url)):
        if start > upto:
            shown += f"{url[upto:start]}…"
        upto = max(upto, end)
    return shown + url[upto:]


def _password_spans(url: str) -> Iterator[tuple[int, int]]:
    """Yield the spans that may hold a password; they may overlap, as an unescaped password can look like a query."""
    if login := re.search(r"//[^:]*:(.*)@", url, re.DOTALL):
        yield login.span(1)
    if not re.match(r"\s*[\w+.-]+://", url):
        value = r"(?:'(?:\\.?|[^'\\])*'?|(?:\\.?|[^\s\\])*)(?:(?!\s+\w+\s*=).)*"
        yield from (found.span(1) for found in re.finditer(rf"(?is)password\s*=\s*({value})", url))
        return
    for part in re.finditer(r"[?&;#](?=([^=?&;#]*)=((?:(?!&[^=&]*=).)*))", url, re.DOTALL):
        if unquote_plus(part[1]).strip().lower().endswith("password"):  # the name may be percent-encoded
            yield part.span(2)


def load_settings(**overrides: Any) -> Settings:
    """Load the settings; an error names the invalid one."""
    return _validate(Settings, overrides)


def load_worker_settings(**overrides: Any) -> WorkerSettings:
    """Load the settings of a worker; an error names the invalid one."""
    return _validate(WorkerSettings, overrides)


M = TypeVar("M", bound=BaseModel)


def check_sections(find_extensions: Callable[[], Collection[str]]) -> None:
    """Raise an error if the settings file has a table that is neither a setting nor the section of an extension."""
    sections = _find_sections(read_settings_file())
    unknown = sorted(sections.keys() - set(find_extensions())) if sections else []
    if unknown:
        known = sorted({"connections", "worker", *find_extensions()})
        raise Invalid(
            f"{settings_file_path()} has an unknown table [{unknown[0]}]",
            code="settings.section.unknown",
            field=unknown[0],
            remedy=f"the tables are {', '.join(f'[{name}]' for name in known)}; is an extension not installed?",
        )


def load_section(name: str, model: type[M]) -> M:
    """Load the settings section of an extension: variables ``TENUTO_NAME_…``, then the table of the settings file."""
    if taken := [field for field in Settings.model_fields if field == name or field.startswith(f"{name}_")]:
        raise Invalid(
            f"an extension named {name!r} cannot have settings: TENUTO_{taken[0].upper()} is a setting of Tenuto",
            code="settings.section.reserved",
            field=name,
            remedy="rename the extension",
        )
    table = _find_sections(read_settings_file()).get(name, {})

    class SectionSettings(BaseSettings, model):  # type: ignore[misc, valid-type]
        model_config = SettingsConfigDict(
            env_prefix=f"TENUTO_{name.upper()}_", env_ignore_empty=True, frozen=True, extra="forbid",
            hide_input_in_errors=True,
        )  # fmt: skip

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: Any, **__: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            given = InitSettingsSource(settings_cls, _drop_empty(table))
            return _EnvironmentSource(settings_cls), given

    try:
        return SectionSettings()
    except ValidationError as error:
        raise _to_invalid(error, f"{name}.", f"TENUTO_{name.upper()}_") from error


def _validate(kind: type[S], given: dict[str, Any]) -> S:
    try:
        return kind(**_drop_empty(given))
    except ValidationError as error:
        raise _to_invalid(error, "", kind.model_config.get("env_prefix", "")) from error


def _to_invalid(error: ValidationError, table: str, env_prefix: str) -> Invalid:
    first = error.errors(include_url=False)[0]
    field = table + ".".join(str(part) for part in first["loc"])
    where = f"see {env_prefix}{str(first['loc'][0]).upper()}" if first["loc"] else f"see {env_prefix}…"
    if settings_file_path().exists():
        where += f", and {settings_file_path()}"
    reason = first["msg"].removeprefix("Value error, ")
    return Invalid(
        f"the setting '{field}' is not valid: {reason}", code="settings.value.invalid", field=field, remedy=where
    )
