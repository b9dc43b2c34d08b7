"""Scratch memory for compiled loops over many jobs: each plan owns one set, which is invalid between two calls."""

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


def new_scratch_arrays(num_pieces: int) -> ScratchArrays:
    """Scratch memory for profiles of `num_pieces` pieces."""
    return ScratchArrays(
        empty_availability_profile(num_pieces),
        empty_segments(),
        empty_segments(),
        empty_segments(),
        new_scratch(),
    )
