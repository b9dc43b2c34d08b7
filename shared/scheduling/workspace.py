"""Memory for loops over many jobs: worth nothing between two calls, so that all plans of a process share it."""

from typing import NamedTuple

from shared.scheduling.filling import Scratch, Segments, empty_segments, new_scratch
from shared.scheduling.profile import Profile, empty_profile


class Workspace(NamedTuple):
    """profile: one more step function; found, other, best: one schedule each; memory: of `fill`."""

    profile: Profile
    found: Segments
    other: Segments
    best: Segments
    memory: Scratch


def workspace(num_pieces: int) -> Workspace:
    """With room for profiles of so many pieces. It is the same for all callers: nobody may keep what is in it."""
    global _shared
    if len(_shared.profile.start_B) < num_pieces:
        _shared = _shared._replace(profile=empty_profile(2 * num_pieces))
    return _shared


_shared = Workspace(empty_profile(1024), empty_segments(), empty_segments(), empty_segments(), new_scratch())
