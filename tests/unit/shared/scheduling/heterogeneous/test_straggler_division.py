"""How a job divides its virtual nodes over GPUs of which some are slow: by hand, and compared with every division."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.scheduling.heterogeneous.step_times import CommunicationTimes
from elasticflow.shared.scheduling.heterogeneous.straggler_division import DividedSteps, Division
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import DEFAULT_LEAST_GAIN, GpusOfType

V8 = GpusOfType(name="", num_gpus=1, step_s_V=tuple(map(float, range(1, 9))))  # one second each


def steps(*slowdowns: float, one_gpu: GpusOfType | None = V8, least_gpus: int = 1) -> DividedSteps:
    return DividedSteps(slowdowns=slowdowns, one_gpu=one_gpu, least_gpus=least_gpus)


@pytest.mark.parametrize(
    ("of", "even_s", "fastest", "step_s"),
    [
        (steps(1.0, 2.0), 8.0, Division(used=(0, 1), counts=(6, 2)), 6.0),
        (steps(2.0, 1.0), 8.0, Division(used=(0, 1), counts=(2, 6)), 6.0),
        (steps(1.0, 5.0), 20.0, Division(used=(0, 1), counts=(7, 1)), 7.0),
        (steps(1.0, 8.0), 32.0, Division(used=(0,)), 8.0),
        (steps(1.0, 3.0, 1.0, 1.0), 6.0, Division(used=(0, 2, 3)), 3.0),
        (steps(1.0, 3.0, 1.0, 1.0, least_gpus=4), 6.0, Division(used=(0, 1, 2, 3), counts=(3, 1, 2, 2)), 3.0),
        (steps(3.0, 1.0, 2.0, 1.0), 6.0, Division(used=(0, 1, 2, 3), counts=(1, 3, 1, 3)), 3.0),
        (steps(20.0, 1.0, 1.5, 1.0), 40.0, Division(used=(1, 2, 3), counts=(3, 2, 3)), 3.0),
        (steps(1.0, 1.0), 4.0, Division(used=(0, 1)), 4.0),
    ],
    ids=[
        "a third of the work of the other",
        "in order of rank",
        "one of eight",
        "none: it leaves",
        "one of four leaves, as three divide as well without it",
        "as many as the user asks for stay",
        "two slow GPUs",
        "one of two leaves",
        "none is slow",
    ],
)
def test_the_fastest_division(of: DividedSteps, even_s: float, fastest: Division, step_s: float) -> None:
    assert of.step_s(of.even) == even_s
    assert of.fastest() == fastest
    assert of.step_s(fastest) == step_s


@pytest.mark.parametrize(
    ("slowdowns", "least_gpus", "used", "speedup"),
    [
        ((1.0, 3.0), 1, (0,), 1.5),
        ((1.0, 2.0), 1, (0, 1), 1.0),  # with two virtual nodes, one GPU takes as long for both
        ((1.0, 3.0), 2, (0, 1), 1.0),
        ((3.0, 1.0, 1.0, 1.0), 1, (1, 2, 3), 1.5),
        ((4.0, 3.0, 1.0, 1.0), 1, (2, 3), 2.0),
        ((4.0, 1.9, 1.0, 1.0), 1, (2, 3), 2.0),
        ((4.0, 2.0, 1.0, 1.0), 3, (0, 1, 2, 3), 1.0),
    ],
)
def test_without_measured_step_times_only_whole_gpus_leave(
    slowdowns: tuple[float, ...], least_gpus: int, used: tuple[int, ...], speedup: float
) -> None:
    """The number of virtual nodes is unknown, so one that leaves may double the largest part of the others."""
    of = steps(*slowdowns, one_gpu=None, least_gpus=least_gpus)
    fastest = of.fastest()
    assert fastest == Division(used=used)
    assert of.step_s(of.even) / of.step_s(fastest) == pytest.approx(speedup)


def test_a_part_that_repeats_another_costs_a_virtual_node() -> None:
    of = steps(1.0, 5.0)
    assert of.step_s(Division(used=(0, 1), counts=(8, 0))) == of.step_s(Division(used=(0,))) == 8.0
    assert steps(1.0, 9.0).step_s(Division(used=(0, 1), counts=(8, 0))) == 9.0


def test_communication_of_those_that_stay_counts() -> None:
    communicates = GpusOfType(
        name="", num_gpus=1, step_s_V=V8.step_s_V, communication=CommunicationTimes((2, 4), (1.0, 3.0))
    )
    of = steps(1.0, 8.0, one_gpu=communicates)
    assert (of.step_s(of.even), of.step_s(of.fastest())) == (33.0, 8.0)


def every_division(num_gpus: int, num_virtual_nodes: int) -> list[Division]:
    """With a virtual node on each GPU that is used."""
    found = list[Division]()
    for counts in product(range(num_virtual_nodes + 1), repeat=num_gpus):
        if sum(counts) == num_virtual_nodes:
            used = tuple(index for index, count in enumerate(counts) if count)
            found.append(Division(used=used, counts=tuple(filter(None, counts))))
    return found


@given(
    slowdowns=st.lists(st.sampled_from([1.0, 1.0, 1.5, 2.0, 2.7, 4.0, 9.0]), min_size=1, max_size=4),
    fixed_s=st.sampled_from([0.0, 0.5, 4.0]),
    least_gpus=st.sampled_from([1, 2]),
)
def test_no_division_is_faster(slowdowns: list[float], fixed_s: float, least_gpus: int) -> None:
    """By more than what a slow GPU must be worth to take part."""
    one_gpu = GpusOfType(name="", num_gpus=1, step_s_V=tuple(fixed_s + count for count in range(1, 9)))
    of = steps(*slowdowns, one_gpu=one_gpu, least_gpus=min(least_gpus, len(slowdowns)))
    fastest = of.fastest()
    assert not fastest.counts or (sum(fastest.counts) == 8 and min(fastest.counts) > 0)
    assert len(fastest.used) >= of.least_gpus
    assert all(index in fastest.used for index, slowdown in enumerate(slowdowns) if slowdown == 1.0)
    best_s = min(of.step_s(each) for each in every_division(len(slowdowns), 8) if len(each.used) >= of.least_gpus)
    assert of.step_s(fastest) <= best_s * (1.0 + DEFAULT_LEAST_GAIN)
