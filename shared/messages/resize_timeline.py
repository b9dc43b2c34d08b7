"""How a change of a job's workers went that nobody had to stop for."""

from dataclasses import dataclass

from elasticflow.shared.messages.limits import DurationS, NumBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeTimeline:
    """As one worker saw it, by a clock that nobody sets.

    prepare_s: from the wish, or its birth, to the step boundary at which all were ready; the others trained meanwhile.
    stop_s: from that boundary to the first step: the only time in which nobody trained.
    first_step_s: the first step of the new generation.
    bytes_moved: state that each newcomer was handed.
    """

    prepare_s: DurationS
    stop_s: DurationS
    first_step_s: DurationS
    bytes_moved: NumBytes
