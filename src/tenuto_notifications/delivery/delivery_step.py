"""The step kind ``notifications.deliver``: sends one message over its channel.

Every attempt sends the same id, so that a receiver can recognise a repetition: an attempt whose worker dies between
sending and recording is repeated.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, TypeAdapter

from tenuto.extension import ExtensionServices, StepKind
from tenuto.jobs.context import Context, PermanentFailure
from tenuto_notifications.delivery.email import send_email
from tenuto_notifications.delivery.webhooks import send_webhook
from tenuto_notifications.model.events import DELIVERY_KIND
from tenuto_notifications.model.messages import to_slack, to_teams
from tenuto_notifications.model.rules import Channel, Email, JobChannel, Slack, Teams, Webhook
from tenuto_notifications.store import messages

_CHANNELS: TypeAdapter[Webhook | Slack | Teams | Email | JobChannel] = TypeAdapter(Channel)


class DeliveryArguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    message: UUID
    """The message to deliver."""


def delivery_kind(services: ExtensionServices) -> StepKind:
    """The step kind that delivers messages."""

    async def deliver(arguments: DeliveryArguments, ctx: Context) -> dict[str, Any]:
        """Send a message over its channel."""
        order = await messages.load_delivery(await services.open_database(), arguments.message)
        if order is None:
            raise PermanentFailure(f"there is no message {arguments.message}", code="notifications.message.not_found")
        channel = _CHANNELS.validate_python(order.channel)
        document = order.content
        match channel:
            case Webhook():
                return await send_webhook(
                    services, ctx, channel.url, document, str(order.id), channel.headers, channel.signing_key
                )
            case Slack():
                return await send_webhook(services, ctx, channel.url, to_slack(document), str(order.id))
            case Teams():
                return await send_webhook(services, ctx, channel.url, to_teams(document), str(order.id))
            case Email():
                return await send_email(services, ctx, channel, document, str(order.id), order.rule_name)
            case _:
                raise PermanentFailure(
                    "a message to a job is delivered by a task of the job", code="notifications.message.wrong_channel"
                )

    return StepKind.of(DELIVERY_KIND, DeliveryArguments, deliver, help="Deliver a notification")
