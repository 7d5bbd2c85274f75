"""Settings of the SCIM connector."""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tenuto_identity.connectors.contract import SecretName
from tenuto_identity.connectors.scim.dialects import DIALECTS, Dialect, DialectName


class DeltaMethod(StrEnum):
    """Where a delta import finds the changes."""

    AUTO = "auto"
    """``last_modified`` if the server supports filters, else none."""
    LAST_MODIFIED = "last_modified"
    """Resources changed since a time (``meta.lastModified``); deletions are not found."""
    NONE = "none"


class TypeSettings(BaseModel):
    """How one object type is found."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    resource: str | None = None
    """Name of the resource type, such as ``User``; the name of the type by default."""
    filter: str | None = Field(None, min_length=1)
    """Filter that an import applies, such as ``userType eq "Employee"``."""


class ScimSettings(BaseModel):
    """Settings of the SCIM connector."""

    model_config = ConfigDict(extra="forbid")

    url: str
    """Address of the service, such as ``https://example.org/scim/v2``."""
    allow_unencrypted: bool = False
    """Accept ``http://``: everything, with the token or password, is sent unprotected."""
    verify_certificate: bool = True
    """Verify the certificate of the server and its host name."""
    ca_file: str | None = None
    """Certificates to trust, in PEM; those of the operating system by default."""
    token: SecretName | None = None
    """Bearer token, as ``{secret: NAME}``."""
    user: str | None = None
    """Account for basic authentication."""
    password: SecretName | None = None
    """Password of the account, as ``{secret: NAME}``."""
    types: dict[str, TypeSettings] = Field(default_factory=dict)
    """Object type → resource type and filter."""
    dialect: DialectName = DialectName.STANDARD
    """Form of the requests: ``standard``, or ``entra`` or ``okta`` for servers that accept only what those send."""
    delta: DeltaMethod = DeltaMethod.AUTO
    page_size: int = Field(100, ge=2, le=10_000)
    """Resources in one page of a list; the server may send fewer."""
    sort_by: str | None = "id"
    """Attribute by which lists are sorted, if the server can sort; null for the order of the server."""
    concurrency: int = Field(4, ge=1, le=32)
    """Requests of an export that are sent at the same time."""
    bulk: bool = False
    """Send several requests of an export in one (``/Bulk``), if the server supports it."""
    max_values: int = Field(1_000, ge=1, le=100_000)
    """Values of lists, such as members, in one request."""
    max_wait_seconds: int = Field(60, ge=0, le=3_600)
    """How long a request waits in all when the server is busy (429 or 503), as ``Retry-After`` says."""
    connect_timeout_seconds: int = Field(10, ge=1, le=600)
    timeout_seconds: int = Field(60, ge=1, le=3_600)
    """How long the server may be silent."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{value!r} is not the address of a SCIM service; write https://HOST/PATH")
        if parts.username or parts.password:
            raise ValueError("the address has an account; write user and password instead")
        try:
            parts.port  # noqa: B018 - raises for a port that is not a number
        except ValueError:
            raise ValueError(f"{value!r} has a port that is not a number") from None
        return value.rstrip("/")

    @model_validator(mode="after")
    def _check_account(self) -> ScimSettings:
        if urlsplit(self.url).scheme == "http" and not self.allow_unencrypted:  # guard: identity.scim_unencrypted
            raise ValueError("url is not encrypted; write https://, or set allow_unencrypted: true")
        if (self.user is None) != (self.password is None):
            raise ValueError("only one of user and password is set; set both or neither")
        if self.user is not None and (not self.user.strip() or ":" in self.user):
            raise ValueError("user is blank or contains a colon, which basic authentication does not allow")
        if self.token is not None and self.user is not None:
            raise ValueError("token and user exclude each other; leave out one of them")
        return self

    @property
    def form(self) -> Dialect:
        """The form of the requests."""
        return DIALECTS[self.dialect]

    def resource_name(self, type_name: str) -> str:
        """Return the name of the resource type of an object type."""
        found = self.types.get(type_name)
        return (found.resource if found else None) or type_name

    def type_filter(self, type_name: str) -> str | None:
        """Return the filter of an object type."""
        found = self.types.get(type_name)
        return found.filter if found else None
