"""What is measured of jobs: the timeline of a resize, the number of virtual nodes, and the step times of one GPU."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Gt, Le
from pydantic import Strict

from elasticflow.shared.messages.limits import MAX_BATCH, DurationS, FewItems, NumBytes, PositiveDurationS


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeTimeline:
    """One resize, as measured by one worker on its monotonic clock.

    prepare_s: from the order to switch, or the start of a joining worker, to the step boundary at which all were ready.
    stop_s: from that boundary to the first step; only in this time no worker trained.
    first_step_s: the first step of the new generation.
    bytes_moved: state that each joining worker received.
    """

    prepare_s: DurationS
    stop_s: DurationS
    first_step_s: DurationS
    bytes_moved: NumBytes


# --- virtual nodes -------------------------------------------------------------------------------------
# Into how many virtual nodes a job cuts its batch, and the step time of one GPU by how many it computes.

PositiveVirtualNodes = Annotated[int, Strict(), Gt(0), Le(MAX_BATCH)]
VirtualNodeSource = Literal["code", "measured", "default"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualNodeCount:
    """Into how many virtual nodes a bitwise job cuts its batch, and why.

    source: its code says so, or a profiling run has measured it, or could not and took the default.
    step_s_by_count: the median step in seconds of one GPU with the whole batch in so many, as far as it is measured.
    """

    count: PositiveVirtualNodes
    source: VirtualNodeSource
    step_s_by_count: Annotated[Mapping[PositiveVirtualNodes, PositiveDurationS], FewItems] = field(
        default_factory=dict[int, float]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleGpuStepTimes:
    """num_virtual_nodes: of the job; in the fast mode, equal parts of its batch, since the job itself has no number.

    step_s_by_virtual_nodes: the median step in seconds of one GPU that computes so many of them, all of them included.
    """

    num_virtual_nodes: PositiveVirtualNodes
    step_s_by_virtual_nodes: Annotated[Mapping[PositiveVirtualNodes, PositiveDurationS], FewItems]
    reproducible: Literal["bitwise", "fast"]


def counts_to_measure(most: int) -> tuple[int, ...]:
    """Powers of two and the midpoints between them, and `most` itself: 1, 2, 3, 4, 6, 8, 12, 16, ...

    Source: VirtualFlow, section 5.1.1.
    """
    powers = [1 << exponent for exponent in range(most.bit_length())]
    midpoints = [3 * power // 2 for power in powers if power > 1]
    return tuple(sorted({count for count in powers + midpoints if count < most} | {most}))
