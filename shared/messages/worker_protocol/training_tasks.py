"""Messages of a training manager, whose steps are tasks of a padding load, to the client that started it. Pure.

The client sends an `Assignment` and `StopAtBoundary`, as an executor does to a worker. The manager replies as a worker
does, and with these messages.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from annotated_types import Len

from elasticflow.shared.messages.limits import DurationS, Name, PositiveDurationS, Sequence, TaskIndex, Token


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerReady:
    """The manager listens for runners. The durations are measured in its own process, with one CPU core.

    address: host:port. secret: which runners must know, as hexadecimal digits.
    """

    address: Name
    secret: Token
    task_s: PositiveDurationS
    overhead_s: DurationS
    start_stop_s: DurationS


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksDue:
    """Compute these virtual nodes of this step. A step that is repeated gets another number."""

    step: Sequence
    virtual_nodes: Annotated[tuple[TaskIndex, ...], Len(1)]


class GradientTask(NamedTuple):
    """The input of one task: the gradient of one virtual node at the parameters of one step."""

    address: str
    secret: str
    step: int
    virtual_node: int


FromManager = ManagerReady | TasksDue
