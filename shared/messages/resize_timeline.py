"""The times of a resize whose workers switched without a stop."""

from dataclasses import dataclass

from elasticflow.shared.messages.limits import DurationS, NumBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeTimeline:
    """As measured by one worker, on its monotonic clock.

    prepare_s: from the order to switch, or the start of a joining worker, to the step boundary at which all were ready.
    stop_s: from that boundary to the first step; only in this time no worker trained.
    first_step_s: the first step of the new generation.
    bytes_moved: state that each joining worker received.
    """

    prepare_s: DurationS
    stop_s: DurationS
    first_step_s: DurationS
    bytes_moved: NumBytes
