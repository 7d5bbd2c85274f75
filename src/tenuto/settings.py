"""Settings: from arguments, then the environment (``TENUTO_…``), then the settings file, then defaults. Read once.

The file is ``tenuto.toml`` in the working folder, or the one named by ``TENUTO_CONFIG``. A worker's own settings are
``TENUTO_WORKER_…`` and the file's table ``[worker]``. An empty text is not given, wherever it stands: what counts after
it counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote_plus

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
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
from tenuto.paths import absolute, default_home, settings_file, settings_in_file

S = TypeVar("S", bound=BaseSettings)


class _Environment(EnvSettingsSource):
    """What the environment says; tables as JSON, and what is none is refused by the name of its variable."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except (ValueError, RecursionError):  # not repeated: it may hold a password
            raise Invalid(
                'is not JSON such as {"hr": {"url": "postgresql://…"}}',
                field=field_name,
                remedy=f"see {self.env_prefix}{field_name.upper()}",
            ) from None


class _File(InitSettingsSource):
    """What the settings file says: of a worker in its table, of everything else before its tables."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        top = settings_in_file()
        worker = top.pop("worker", {})
        if not isinstance(worker, dict):
            raise Invalid("must be a table", field="worker", remedy=f"write [worker] in {settings_file()}")
        super().__init__(settings_cls, _without_empty(worker if issubclass(settings_cls, WorkerSettings) else top))


def _without_empty(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None and value != ""}


class WorkerSettings(BaseSettings):
    """How a worker works."""

    model_config = SettingsConfigDict(env_prefix="TENUTO_WORKER_", env_ignore_empty=True, frozen=True, extra="forbid")

    queues: Annotated[tuple[str, ...], NoDecode, Field(min_length=1)] = ("default",)
    """Which queues it serves."""
    slots: int = Field(100, ge=1, le=10_000)
    """How many attempts may run at the same time."""
    claim_batch: int = Field(500, ge=1, le=5_000)
    """How many tasks one claim takes at most."""
    lease_seconds: float = Field(30.0, ge=1, le=3600)
    """How long a task stays with a worker that has fallen silent."""
    poll_seconds: float = Field(2.0, ge=0.05, le=60)
    """How often to look when no notification came."""
    grace_seconds: float = Field(25.0, ge=0, le=86_400)
    """How long running work may take to end after SIGTERM."""
    name: str | None = None
    """A name that stays the same at every start; without one, the first free of HOST-1, HOST-2 …"""

    @field_validator("queues", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
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
        return init_settings, env_settings, _File(settings_cls)


class ConnectionSettings(BaseModel):
    """A database that SQL scripts may be run on."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str | dict[str, str] = Field(repr=False)
    """Its address with the login of the scripts, or ``{ secret = "NAME" }``."""
    driver: str | None = None
    """What reaches it; without a word, what its address begins with."""
    any_login: bool = False
    """Whether its login may be a superuser's, Tenuto's own, or one that may change Tenuto's own tables."""


class Settings(BaseSettings):
    """Everything else."""

    model_config = SettingsConfigDict(
        env_prefix="TENUTO_", env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    database: str | None = Field(None, repr=False)
    """A PostgreSQL address; without one, an embedded server in the home folder."""
    home: Path = Field(default_factory=default_home)
    """Where the embedded database, the locks of names and the health files live."""
    behind_pooler: bool = False
    """The address is a transaction pooler's: nothing is kept on a connection and polling replaces notifications."""
    connect_seconds: float = Field(10.0, ge=0, le=600)
    """How long to knock at a database that cannot be reached; at the prompt it is 1, and a service never gives up."""
    letters_need_notes: bool = False
    """Whether a dead letter may be resolved only with a note that says why."""
    one_shots_in_the_past: Literal["accept", "refuse"] = "accept"
    """Whether a one-shot for an instant that has passed is run at once, or refused."""
    embedded_stop: Literal["when_unused", "never"] = "when_unused"
    """Whether the embedded server is stopped once its last user has left."""
    sweep_seconds: float = Field(5.0, ge=0.1, le=600)
    """How often each service looks for tasks whose worker is dead."""
    scheduler_poll_seconds: float = Field(30.0, ge=0.1, le=600)
    """How often a scheduler looks when nothing woke it; it gives a sign of life every 10 s at least."""
    housekeeping_seconds: float = Field(60.0, ge=0.1, le=3600)
    """How often each service makes partitions ahead of time and sees whether retention is due."""
    retention_days: float = Field(90.0, gt=0, le=36_500)
    """How long activities are kept, at least; whole months are dropped together."""
    retention_every_seconds: float = Field(6 * 3600.0, ge=1)
    """How often each service drops what is past its keeping."""
    web_host: str = "127.0.0.1"
    """Where the web service listens; beyond loopback only with TLS, or behind a proxy."""
    web_port: int = Field(8321, ge=0, le=65_535)
    """Its port; 0 takes any that is free."""
    web_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """The names it answers to besides loopback's, as in the Host header; ``*`` for any."""
    web_behind_proxy: bool = False
    """A proxy has the TLS, and says who is calling."""
    web_proxies: Annotated[tuple[str, ...], NoDecode] = ()
    """The addresses of that proxy; only what comes from them is believed."""
    web_tls_certificate: Path | None = None
    """A file with the certificate, for TLS without a proxy."""
    web_tls_key: Path | None = None
    """A file with its key."""
    api_rate: float = Field(5000.0, ge=0, le=1_000_000)
    """How many requests a second one caller may send to one web service; 0 for as many as it likes."""
    http_allow: Annotated[tuple[str, ...], NoDecode] = ()
    """Host names and networks that the steps of a worker may call by HTTP although they are not public."""
    master_key: SecretStr | None = None
    """What secrets are sealed with: 32 bytes in base64; older keys may follow it, with spaces or commas between."""
    master_key_file: Path | None = None
    """A file with the key instead, older ones below it; for the embedded database one is made in the home."""
    connections: dict[str, ConnectionSettings] = {}
    """The databases SQL scripts may be run on, by name: tables such as ``[connections.hr]`` with ``url``, in the
    environment as JSON. Those of argument, environment and file add up; of one that stands in several, each of its
    fields is taken from the first that has it."""
    files_folder: Path | None = None
    """Where SQL scripts and SQLite files lie that steps name, and nowhere else; if not said, ``files`` in the home."""
    programs: Annotated[tuple[Path, ...], NoDecode] = ()
    """Which programs and scripts steps may run: files, and folders of them; if none, any at all."""
    program_path: Annotated[tuple[Path, ...], NoDecode, Field(min_length=1)] = (
        Path("/usr/local/bin"),
        Path("/usr/bin"),
        Path("/bin"),
    )
    """Where programs that are named without a path are looked for; also their ``PATH``."""
    metrics_open: bool = False
    """Whether anybody who reaches it may read ``/metrics``; otherwise it takes a viewer's key."""
    metrics_port: int | None = Field(None, ge=0, le=65_535)
    """A port on which each service process answers ``/metrics``, ``/healthz`` and ``/readyz``; 0 for any free one."""
    metrics_host: str = "127.0.0.1"
    """On which address; beyond loopback only with ``metrics_open``."""
    ready_lag_seconds: float = Field(60.0, ge=1, le=86_400)
    """How long what is due may wait to be fired before ``/readyz`` says no."""
    log_format: Literal["console", "json"] = "console"
    """How the services of the command line write their log, on stderr: for people, or one JSON object a line."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """From which level on they write."""

    @field_validator("web_hosts", "web_proxies", "http_allow", "programs", "program_path", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("http_allow", mode="after")
    @classmethod
    def _hosts_or_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", each) or re.fullmatch(r"[0-9.]+", each):
                ip_network(each.strip("[]"))
        return value

    @field_validator("programs", "program_path", mode="after")
    @classmethod
    def _whole_paths(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        for path in value:
            if not path.is_absolute():
                raise ValueError(f"{path} is not an absolute path")
        return value

    @field_validator("home", mode="after")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return absolute(value)

    def masked(self) -> dict[str, Any]:
        """All of them as plain data, without what must not be seen."""
        shown = self.model_dump(mode="json")
        if self.database is not None:
            shown["database"] = without_password(self.database)
        for connection in shown["connections"].values():
            if isinstance(connection["url"], str):
                connection["url"] = without_password(connection["url"])
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
        return init_settings, _Environment(settings_cls), _File(settings_cls)


def without_password(url: str) -> str:
    """A database address that may be shown. Of what could be read in two ways, rather too much is left out."""
    shown, upto = "", 0
    for start, end in sorted(_passwords(url)):
        if start > upto:
            shown += f"{url[upto:start]}…"
        upto = max(upto, end)
    return shown + url[upto:]


def _passwords(url: str) -> Iterator[tuple[int, int]]:
    """From where to where one may stand. None is cut short by what another seems to end with: a password need not be
    escaped to get here, and may look like a query or a host."""
    if login := re.search(r"//[^:]*:(.*)@", url, re.DOTALL):
        yield login.span(1)
    if not re.match(r"\s*[\w+.-]+://", url):
        value = r"(?:'(?:\\.?|[^'\\])*'?|(?:\\.?|[^\s\\])*)(?:(?!\s+\w+\s*=).)*"
        yield from (found.span(1) for found in re.finditer(rf"(?is)password\s*=\s*({value})", url))
        return
    for part in re.finditer(r"[?&;#](?=([^=?&;#]*)=((?:(?!&[^=&]*=).)*))", url, re.DOTALL):
        if unquote_plus(part[1]).strip().lower().endswith("password"):  # its name may be written with %6f for an o
            yield part.span(2)


def load(**given: Any) -> Settings:
    """The settings, or an error that names the one that is wrong."""
    return _read(Settings, given)


def load_worker(**given: Any) -> WorkerSettings:
    """A worker's settings, or an error that names the one that is wrong."""
    return _read(WorkerSettings, given)


def _read(kind: type[S], given: dict[str, Any]) -> S:
    try:
        return kind(**_without_empty(given))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        where = f"see {kind.model_config.get('env_prefix', '')}{str(first['loc'][0]).upper()}"
        if settings_file().exists():
            where += f", and {settings_file()}"
        raise Invalid(first["msg"].removeprefix("Value error, "), field=field, remedy=where) from error
