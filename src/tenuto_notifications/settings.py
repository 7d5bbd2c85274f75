"""Settings of notifications: the table ``[notifications]`` and variables ``TENUTO_NOTIFICATIONS_…``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from tenuto_notifications.model.rules import check_address


class NotificationSettings(BaseModel):
    queue: str = "default"
    """Queue of the tasks that deliver messages."""
    poll_seconds: float = Field(2.0, gt=0, le=3600)
    """Interval at which schedulers look for new events, while a rule is enabled."""
    condition_seconds: float = Field(15.0, gt=0, le=3600)
    """Interval at which schedulers check conditions: late and stuck executions, and waiting queues."""
    doctor_seconds: float = Field(300.0, gt=0, le=86_400)
    """Interval at which schedulers run the checks of the doctor, while a rule for its warnings is enabled."""
    addresses: dict[str, Annotated[str, AfterValidator(check_address)]] = {}
    """E-mail addresses of approvers by name, for the links of ``approver_links``; a name may be an address itself."""
    smtp_host: str | None = None
    """Mail server."""
    smtp_port: int = Field(587, ge=1, le=65_535)
    """Port of the mail server."""
    smtp_security: Literal["starttls", "tls", "none"] = "starttls"
    """``starttls`` switches to TLS after the connection, ``tls`` begins with it (port 465), ``none`` does without."""
    smtp_ca_file: Path | None = None
    """Certificates to trust besides those of the system."""
    smtp_user: str | None = None
    """Login of the mail server."""
    smtp_password_secret: str | None = None
    """Name of the secret with the password of the mail server."""
    smtp_from: str | None = None
    """Sender address of e-mails."""
