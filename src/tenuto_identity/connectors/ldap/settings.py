"""Settings of the LDAP connector."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from tenuto_identity.connectors.contract import SecretName
from tenuto_identity.connectors.ldap import filters
from tenuto_identity.model import dn

DEFAULT_PORTS = {"ldap": 389, "ldaps": 636}


class TlsMode(StrEnum):
    """How a connection to an ``ldap://`` URL is protected. ``ldaps://`` is always TLS."""

    STARTTLS = "starttls"
    NONE = "none"


class Library(StrEnum):
    """The LDAP library that connects."""

    AUTO = "auto"
    """``python-ldap`` if it is installed, otherwise ``ldap3``."""
    LDAP3 = "ldap3"
    """Pure Python, in the extra ``identity``."""
    PYTHON_LDAP = "python-ldap"
    """The C library of OpenLDAP, in the extra ``ldap``: maintained, but it has to be compiled."""


class DeltaMethod(StrEnum):
    """Where a delta import finds the changes."""

    AUTO = "auto"
    """Active Directory: ``usn``; a suffix with syncprov: ``syncrepl``; a readable log: ``accesslog``; else none."""
    SYNCREPL = "syncrepl"
    """Content synchronisation (RFC 4533), one refresh for each delta."""
    ACCESSLOG = "accesslog"
    """The log of the accesslog overlay of OpenLDAP."""
    USN = "usn"
    """``uSNChanged`` and the deleted objects of Active Directory."""
    DIRSYNC = "dirsync"
    """The DirSync control of Active Directory; the account needs the permission to replicate changes."""
    MODIFY_TIMESTAMP = "modify_timestamp"
    """Entries changed since a time; deletions are not found."""
    NONE = "none"


class TypeSettings(BaseModel):
    """How one object type is found and created."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    object_class: str | None = None
    """Object class that entries of the type have; the name of the type by default."""
    create_classes: tuple[str, ...] = ()
    """Values of ``objectClass`` of new entries; the object class by default."""
    filter: str | None = None
    """Further condition, such as ``(!(objectClass=computer))``."""

    @field_validator("object_class", "create_classes")
    @classmethod
    def _check_classes(cls, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        for each in (value,) if isinstance(value, str) else value or ():
            if not dn.is_type(each):
                raise ValueError(f"{each!r} is not the name of an object class")
        return value

    @field_validator("filter")
    @classmethod
    def _check_filter(cls, value: str | None) -> str | None:
        if value is not None:
            filters.check(value)
        return value


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class LdapSettings(BaseModel):
    """Settings of the LDAP connector."""

    model_config = ConfigDict(extra="forbid")

    url: str
    """``ldaps://HOST[:PORT]`` or ``ldap://HOST[:PORT]``."""
    tls: TlsMode = TlsMode.STARTTLS
    """For ``ldap://``: StartTLS, or ``none`` for a connection without protection."""
    verify_certificate: bool = True
    """Verify the certificate of the server and its host name."""
    ca_file: str | None = None
    """Certificates to trust, in PEM; those of the operating system by default."""
    bind_dn: str | None = None
    """Account; anonymous by default."""
    password: SecretName | None = None
    """Password of the account, as ``{secret: NAME}``."""
    base: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = ()
    """Where objects are read if no containers are selected; the naming contexts of the server by default."""
    types: dict[str, TypeSettings] = Field(default_factory=dict)
    """Object type → object class, classes of new entries, further filter."""
    page_size: int = Field(500, ge=1, le=10_000)
    """Entries in one page of a search; 0 < size ≤ the limit of the server."""
    paged: bool = True
    """Search in pages. Without pages, a limit of the server fails the import."""
    concurrency: int = Field(4, ge=1, le=32)
    """Connections that read different containers and types at the same time."""
    pipeline_depth: int = Field(50, ge=1, le=500)
    """Requests that are sent before the first answer arrives; a server may close the connection beyond its limit."""
    max_values: int = Field(1_000, ge=1, le=100_000)
    """Values of one attribute in one request."""
    connect_timeout_seconds: int = Field(10, ge=1, le=600)
    """How long the connection, TLS and the bind may take, each."""
    timeout_seconds: int = Field(120, ge=1, le=3_600)
    """How long a request may take; it is also the time limit of searches."""
    delta: DeltaMethod = DeltaMethod.AUTO
    """Where a delta import finds the changes."""
    log_base: str | None = None
    """Suffix of the accesslog; found in the naming contexts by default."""
    library: Library = Library.AUTO
    """The LDAP library; all of them give the same results."""
    create_containers: bool = False
    """Create missing parents (ou, o, l; cn on Active Directory) of new and moved entries."""
    placeholder_member: str = "cn=tenuto-placeholder"
    """Member of a groupOfNames or groupOfUniqueNames without members. It is never imported."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(f"{value!r} is not an address of a server; write ldaps://HOST or ldap://HOST:PORT")
        if parts.username or parts.password:
            raise ValueError("the address has an account; write bind_dn and password instead")
        try:
            parts.port  # noqa: B018 - raises for a port that is not a number
        except ValueError:
            raise ValueError(f"{value!r} has a port that is not a number") from None
        return value

    @field_validator("base", "log_base", "placeholder_member")
    @classmethod
    def _check_dn(cls, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        for each in (value,) if isinstance(value, str) else value or ():
            dn.parse(each)
        return value

    @model_validator(mode="after")
    def _check_account(self) -> LdapSettings:
        if (self.bind_dn is None) != (self.password is None):
            raise ValueError(
                "only one of bind_dn and password is set; set both, or neither for an anonymous connection"
            )
        if self.bind_dn is not None and not self.bind_dn.strip():
            raise ValueError("bind_dn is empty; leave it out for an anonymous connection")
        return self

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or DEFAULT_PORTS[parts.scheme]

    @property
    def is_ldaps(self) -> bool:
        return urlsplit(self.url).scheme == "ldaps"

    def type_settings(self, name: str) -> TypeSettings:
        return self.types.get(name) or TypeSettings()

    def object_class(self, type_name: str) -> str:
        """Return the object class of an object type."""
        return self.type_settings(type_name).object_class or type_name

    def type_filter(self, type_name: str) -> str:
        """Return the filter that finds the entries of an object type."""
        found = filters.equal("objectClass", self.object_class(type_name))
        further = self.type_settings(type_name).filter
        return filters.all_of(found, further) if further else found
