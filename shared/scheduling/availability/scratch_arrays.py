"""Scratch memory for compiled loops over many jobs: successive plans of one owner use it again."""

from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.availability.availability_profile import (
    MAX_SEGMENTS,
    AvailabilityProfile,
    empty_availability_profile,
)
from elasticflow.shared.scheduling.compiled.compile import Floats, Integers

MAX_CHANGES = 16384  # of level, per call of `fill`
_MAX_LEVELS = 32


class Segments(NamedTuple):
    """One schedule."""

    start_M: Floats
    end_M: Floats
    num_gpus_M: Integers


class Scratch(NamedTuple):
    """Scratch memory of `fill`: each change of level, the change before it, and when that one ended."""

    change_s: Floats
    change_level: Integers
    change_after: Integers
    after_end_s: Floats
    line_L: Floats  # work at the instant 0 of the highest line of each level
    line_change_L: Integers  # the change with which it began; -1: the level is not held


def empty_segments() -> Segments:
    return Segments(np.empty(MAX_SEGMENTS), np.empty(MAX_SEGMENTS), np.empty(MAX_SEGMENTS, np.int64))


def new_scratch() -> Scratch:
    return Scratch(
        np.empty(MAX_CHANGES),
        np.empty(MAX_CHANGES, np.int64),
        np.empty(MAX_CHANGES, np.int64),
        np.empty(MAX_CHANGES),
        np.empty(_MAX_LEVELS),
        np.empty(_MAX_LEVELS, np.int64),
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
