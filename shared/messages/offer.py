"""What could be promised in place of a refused wish."""

from dataclasses import dataclass

from shared.messages.limits import BatchSize, PositiveIterations, TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The refused wish with these in place of its own: promised, if it is made before anything else changes."""

    deadline_s: TimeS
    max_iterations: PositiveIterations
    global_batch_size: BatchSize
