"""The split over GPU types, over odd step times, against all assignments of virtual nodes to GPUs."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, combinations_with_replacement, product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from elasticflow.shared.scheduling.heterogeneous.step_times import CommunicationTimes
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import (
    GpusOfType,
    TooLittleMemory,
    VirtualNodeSplit,
    split_virtual_nodes,
)

NUM_VIRTUAL_NODES = st.integers(1, 7)
STEP_TIMES_S = st.lists(st.floats(0.0, 2.0), max_size=7).map(lambda added_s: tuple(accumulate([0.1, *added_s])))
NO_OR_SOME_STEP_TIMES_S = STEP_TIMES_S | st.just(())


COMMUNICATION = st.lists(st.floats(0.0, 1.0), max_size=4).map(
    lambda added_s: CommunicationTimes((2, 3, 5, 8)[: len(added_s)], tuple(accumulate(added_s)))
)


@st.composite
def types_of_gpus(draw: st.DrawFn) -> list[GpusOfType]:
    """Each type communicates for another time."""
    names = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    return [
        GpusOfType(
            name=name,
            num_gpus=draw(st.integers(1, 3)),
            step_s_V=draw(NO_OR_SOME_STEP_TIMES_S),
            communication=draw(COMMUNICATION),
        )
        for name in names
    ]


def step_s(counts_of_types: Sequence[Sequence[int]], types: list[GpusOfType]) -> float:
    """The step of any assignment: by type, the virtual nodes of each GPU."""
    used = [(gpus, count) for gpus, counts in zip(types, counts_of_types, strict=True) for count in counts if count]
    return max(gpus.step_s_V[count - 1] + gpus.communication.at(len(used)) for gpus, count in used)


def shortest_s(types: list[GpusOfType], num_virtual_nodes: int) -> float | None:
    """Of all assignments that fit the memory."""
    by_type = (
        combinations_with_replacement(range(min(len(gpus.step_s_V), num_virtual_nodes) + 1), gpus.num_gpus)
        for gpus in types
    )
    whole = (counts for counts in product(*by_type) if sum(map(sum, counts)) == num_virtual_nodes)
    return min((step_s(counts, types) for counts in whole), default=None)


@given(types_of_gpus(), NUM_VIRTUAL_NODES)
def test_no_assignment_is_faster(types: list[GpusOfType], num_virtual_nodes: int) -> None:
    split = split_virtual_nodes(types, num_virtual_nodes, least_gain=0.0)
    shortest = shortest_s(types, num_virtual_nodes)
    if isinstance(split, TooLittleMemory):
        assert shortest is None
        return
    assert split.step_s == split.mixed_s == shortest
    for gpus in types:
        assert split.alone_s[gpus.name] == shortest_s([gpus], num_virtual_nodes)


@given(types_of_gpus(), NUM_VIRTUAL_NODES, st.floats(0.0, 0.5))
def test_the_counts_are_an_assignment_with_the_predicted_step(
    types: list[GpusOfType], num_virtual_nodes: int, least_gain: float
) -> None:
    split = split_virtual_nodes(types, num_virtual_nodes, least_gain)
    assume(isinstance(split, VirtualNodeSplit))
    counts = [split.counts.get(gpus.name, ()) for gpus in types]
    assert sum(map(sum, counts)) == num_virtual_nodes
    assert all(len(used) <= gpus.num_gpus for used, gpus in zip(counts, types, strict=True))
    assert all(min(used, default=1) >= 1 and max(used, default=0) - min(used, default=0) <= 1 for used in counts)
    assert step_s(counts, types) == split.step_s


@given(types_of_gpus(), NUM_VIRTUAL_NODES, st.floats(0.0, 0.5))
def test_a_mix_is_taken_only_where_it_gains_more_than_demanded(
    types: list[GpusOfType], num_virtual_nodes: int, least_gain: float
) -> None:
    split = split_virtual_nodes(types, num_virtual_nodes, least_gain)
    assume(isinstance(split, VirtualNodeSplit))
    possible_s = [alone_s for alone_s in split.alone_s.values() if alone_s is not None]
    if len(split.counts) > 1:
        assert split.step_s == split.mixed_s
        assert all(alone_s > split.mixed_s * (1 + least_gain) for alone_s in possible_s)
    else:
        assert split.step_s == min(possible_s) <= split.mixed_s * (1 + least_gain)
        assert split.gain == pytest.approx(split.step_s / split.mixed_s - 1)


@given(types_of_gpus(), NUM_VIRTUAL_NODES)
def test_it_is_never_worse_than_an_even_split(types: list[GpusOfType], num_virtual_nodes: int) -> None:
    num_gpus = sum(gpus.num_gpus for gpus in types)
    even = iter(
        ((rank + 1) * num_virtual_nodes // num_gpus) - rank * num_virtual_nodes // num_gpus for rank in range(num_gpus)
    )
    counts = [[next(even) for _ in range(gpus.num_gpus)] for gpus in types]
    assume(all(max(of_type) <= len(gpus.step_s_V) for of_type, gpus in zip(counts, types, strict=True)))
    split = split_virtual_nodes(types, num_virtual_nodes, least_gain=0.0)
    assert isinstance(split, VirtualNodeSplit)
    assert split.step_s <= step_s(counts, types)


@given(types_of_gpus(), types_of_gpus(), st.data())
def test_more_gpus_or_types_never_make_it_slower(
    types: list[GpusOfType], others: list[GpusOfType], data: st.DataObject
) -> None:
    most = sum(gpus.num_gpus * len(gpus.step_s_V) for gpus in types)
    num_virtual_nodes = data.draw(st.integers(1, max(1, most)))
    before = split_virtual_nodes(types, num_virtual_nodes, least_gain=0.0)
    assume(isinstance(before, VirtualNodeSplit))
    for more in (
        [*types, *(replace(gpus, name=f"new-{gpus.name}") for gpus in others)],
        [replace(types[0], num_gpus=types[0].num_gpus + 1), *types[1:]],
    ):
        after = split_virtual_nodes(more, num_virtual_nodes, least_gain=0.0)
        assert isinstance(after, VirtualNodeSplit)
        assert after.step_s <= before.step_s


@given(types_of_gpus(), st.integers(1, 40))
def test_it_does_not_depend_on_the_order_of_the_types(types: list[GpusOfType], num_virtual_nodes: int) -> None:
    assert split_virtual_nodes(types, num_virtual_nodes) == split_virtual_nodes(types[::-1], num_virtual_nodes)
