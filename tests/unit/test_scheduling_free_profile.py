import math

import pytest

from shared.scheduling.free_profile import FreeProfile, Segment

PROMISED = (Segment(1.0, 3.0, 2), Segment(3.0, 5.0, 4))


def test_reserving_cuts_the_profile_at_the_ends_of_each_segment() -> None:
    free = FreeProfile.constant(8, 0.0).reserve(PROMISED)
    assert list(free.segments(10.0)) == [(0.0, 1.0, 8), (1.0, 3.0, 6), (3.0, 5.0, 4), (5.0, 10.0, 8)]
    assert list(free.segments(2.0)) == [(0.0, 1.0, 8), (1.0, 2.0, 6)]
    assert list(FreeProfile.of(8, 0.0, [PROMISED]).segments(math.inf)) == list(free.segments(math.inf))


def test_giving_back_restores_the_profile() -> None:
    free = FreeProfile.constant(8, 0.0).reserve(PROMISED).release(PROMISED)
    assert list(free.segments(math.inf)) == [(0.0, math.inf, 8)]


def test_more_than_is_free_cannot_be_reserved() -> None:
    free = FreeProfile.constant(5, 0.0).reserve(PROMISED)
    assert not free.fits((Segment(0.0, 3.5, 2),))
    assert free.fits((Segment(0.0, 3.0, 3), Segment(3.0, 4.0, 1)))
    with pytest.raises(AssertionError, match="more GPUs promised"):
        free.reserve((Segment(0.0, 3.5, 2),))
    with pytest.raises(AssertionError, match="more GPUs promised"):
        FreeProfile.of(5, 0.0, [PROMISED, (Segment(0.0, 3.5, 2),)])
    assert free.overdraw((Segment(0.0, 3.5, 2),)).lowest == -1


def test_a_profile_is_a_value() -> None:
    free = FreeProfile.constant(8, 0.0)
    free.reserve(PROMISED)
    assert free.num_gpus_now == 8
    assert free.lowest == 8


def test_the_profile_after_a_later_instant() -> None:
    free = FreeProfile.constant(8, 0.0).reserve(PROMISED).after(2.0)
    assert list(free.segments(6.0)) == [(2.0, 3.0, 6), (3.0, 5.0, 4), (5.0, 6.0, 8)]
    with pytest.raises(AssertionError, match="past"):
        free.after(1.0)
