"""Delivery over HTTP, with the transport and the address rules of HTTP steps.

Signatures follow Standard Webhooks: ``webhook-signature`` is the HMAC of id, timestamp and body.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from tenuto.errors import Invalid
from tenuto.extension import ExtensionServices
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.model.access.secrets import SecretRef, TextOrSecret
from tenuto.steps.http_call import (
    CallFailed,
    Headers,
    HttpRequest,
    build_request,
    fail_unexpected,
    parse_url,
    send_request,
)
from tenuto.steps.http_response import is_expected
from tenuto_notifications.model.rules import Rule, Webhook

TIMEOUT_SECONDS = 15.0
_HEADERS: TypeAdapter[dict[str, TextOrSecret]] = TypeAdapter(Headers)
_EXPECTED: list[int | str] = ["200-299"]
_RESPONSE_LIMIT = 4 * 1024
_KEY_PREFIX = "whsec_"


def check_channel(rule: Rule) -> None:
    """Raise an error if the address or the headers of a webhook are not valid."""
    if not isinstance(rule.channel, Webhook):
        return
    try:
        if isinstance(rule.channel.url, str):
            parse_url(rule.channel.url)
        _HEADERS.validate_python(rule.channel.headers)
    except Invalid as error:
        field = f"channel.{error.field}"
        raise Invalid(error.message, code=error.code, field=field, remedy=error.remedy) from None


async def send_webhook(
    services: ExtensionServices,
    ctx: Context,
    url: TextOrSecret,
    document: Mapping[str, Any],
    message_id: str,
    headers: Mapping[str, TextOrSecret] | None = None,
    signing_key: SecretRef | None = None,
) -> dict[str, Any]:
    """Send a document. Raise `PermanentFailure` if a retry cannot succeed, otherwise an error that leads to a retry."""
    body = json.dumps(document, ensure_ascii=False).encode("utf-8")
    timestamp = str(int((await services.open_database()).clock.now().timestamp()))
    sent: dict[str, str] = {}
    for name, value in (headers or {}).items():
        sent[name] = await services.reveal_secret(ctx, value)
    sent |= {"Content-Type": "application/json", "webhook-id": message_id, "webhook-timestamp": timestamp}
    if signing_key is not None:
        key = await services.reveal_secret(ctx, signing_key)
        sent["webhook-signature"] = sign(key, message_id, timestamp, body)
    try:
        address = await services.reveal_secret(ctx, url)
        request = build_request(ctx, "POST", address, sent, body, shows_path=isinstance(url, str))
    except Invalid as error:  # the value of a secret is not a valid address or header
        raise PermanentFailure(str(error), code=error.code, field=error.field) from None
    return await _send(services, ctx, request)


async def _send(services: ExtensionServices, ctx: Context, request: HttpRequest) -> dict[str, Any]:
    allowed_hosts = services.get_settings().http_allowed_hosts
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            response = await send_request(request, allowed_hosts, body_limit=_RESPONSE_LIMIT)
    except TimeoutError:
        raise CallFailed(
            f"{request} got no complete response within {TIMEOUT_SECONDS:g} s", code="step.http.timeout"
        ) from None
    if not is_expected(_EXPECTED, response.status):
        fail_unexpected(ctx, request, response, _EXPECTED)
    return {"status": response.status}


def sign(key: str, message_id: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a message. A key that begins with ``whsec_`` is base64, any other is a text."""
    content = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(_key_bytes(key), content, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode('ascii')}"


def _key_bytes(key: str) -> bytes:
    if not key.startswith(_KEY_PREFIX):
        return key.encode("utf-8")
    try:
        return base64.b64decode(key.removeprefix(_KEY_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise PermanentFailure(
            "the signing key begins with whsec_ but is not base64",
            code="notifications.signing_key.invalid",
            remedy="set the secret again, without the prefix or with a base64 key",
        ) from None
