"""The interface of a work queue of the bus: each message goes to one of those who pull, until one has settled it."""

from collections.abc import Mapping
from typing import Protocol


class WorkItem(Protocol):
    """A message of a work queue, to be settled by exactly one of ack, nak, term.

    Settling is best effort: if it gets lost, the message comes again (num_delivered counts from 1). sequence and
    stored_at_s are the same for each delivery.
    """

    @property
    def subject(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def sequence(self) -> int: ...
    @property
    def stored_at_s(self) -> float: ...
    @property
    def num_delivered(self) -> int: ...

    async def ack(self) -> None:
        """Done: never again."""
        ...

    async def nak(self, delay_s: float = 0.0) -> None:
        """Not now: deliver it again after delay_s, to any replica."""
        ...

    async def in_progress(self) -> None:
        """Still in progress: count the ack wait from now."""
        ...

    async def term(self) -> None:
        """Failed permanently: never again."""
        ...


class WorkQueue(Protocol):
    """One replica's access to a queue that all replicas of a consumer share."""

    async def pull(self, max_messages: int, timeout_s: float) -> list[WorkItem]:
        """At least one message as soon as there is one, and all that wait then; [] after timeout_s."""
        ...

    async def close(self) -> None:
        """Return messages that arrived without a pull."""
        ...
