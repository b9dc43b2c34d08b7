"""Message types by their wire names, and upcasters of old versions, which `codec` alone calls."""

from collections.abc import Callable, Mapping
from typing import Any, get_args

from elasticflow.shared.messages.commands import Command, QuoteDeadline
from elasticflow.shared.messages.events import Event, PlanDecided, Reply, Telemetry

Message = Command | QuoteDeadline | PlanDecided | Event | Reply | Telemetry
Fields = dict[str, Any]  # a payload

MESSAGE_TYPES: Mapping[str, type[Any]] = {
    message_type.__name__: message_type for message_type in get_args(Message)
}

# (name, version) -> a function from the payload of that version to the payload of the next one. Empty until the first
# release: all versions are 1.
UPCASTERS: dict[tuple[str, int], Callable[[Fields], Fields]] = {}
