"""Scratch memory for compiled loops over many jobs: successive plans of one owner use it again."""

from typing import NamedTuple

from elasticflow.shared.scheduling.availability.availability_profile import (
    AvailabilityProfile,
    empty_availability_profile,
)
from elasticflow.shared.scheduling.availability.fill_one_job import (
    Scratch,
    Segments,
    empty_segments,
    new_scratch,
)


class ScratchArrays(NamedTuple):
    """availability: one more step function; found, other, best: one schedule each; memory: of `fill`."""

    availability: AvailabilityProfile
    found: Segments
    other: Segments
    best: Segments
    memory: Scratch


class ScratchMemory:
    """One set of scratch arrays, whose contents are invalid between two calls.

    New arrays cost a page fault for each 4 KiB at their first use, so that a planning cache keeps them.
    """

    def __init__(self) -> None:
        self._arrays = ScratchArrays(
            empty_availability_profile(1024),
            empty_segments(),
            empty_segments(),
            empty_segments(),
            new_scratch(),
        )

    def arrays(self, num_pieces: int) -> ScratchArrays:
        """The arrays, with capacity for a profile of `num_pieces` pieces."""
        if len(self._arrays.availability.start_B) < num_pieces:
            self._arrays = self._arrays._replace(availability=empty_availability_profile(2 * num_pieces))
        return self._arrays
