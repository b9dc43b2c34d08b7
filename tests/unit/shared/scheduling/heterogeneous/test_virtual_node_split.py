"""The split over GPU types, beside Table 4 and section 6.5.1 of the VirtualFlow paper: ResNet-50, batches of 8,192."""

from dataclasses import replace

import pytest

from elasticflow.shared.scheduling.heterogeneous.step_times import CommunicationTimes
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import (
    GpusOfType,
    TooLittleMemory,
    VirtualNodeSplit,
    split_virtual_nodes,
)

BATCH_SIZE = 8192
GAIN_OVER_V100, GAIN_OVER_P100 = 1.423, 1.524  # of H3: two V100 with 2,048 samples each, eight P100 with 512 each
# The paper has no step times. These two follow from the gains, if communication takes the same time in all three runs.
# The unit of time is that of one sample on a P100.
COMMUNICATION = (1024 - GAIN_OVER_P100 * 512) / (GAIN_OVER_P100 - 1)
V100_SPEED = 4096 / (GAIN_OVER_V100 * (512 + COMMUNICATION) - COMMUNICATION)
FREE = CommunicationTimes()
SAME_FOR_ALL = CommunicationTimes((2, 16), (COMMUNICATION, COMMUNICATION))


def gpus(
    name: str,
    num_gpus: int,
    num_virtual_nodes: int,
    speed: float,
    most: int | None = None,
    communication: CommunicationTimes = FREE,
) -> GpusOfType:
    each = BATCH_SIZE / num_virtual_nodes / speed
    times = (count * each for count in range(1, (most or num_virtual_nodes) + 1))
    return GpusOfType(name=name, num_gpus=num_gpus, step_s_V=tuple(times), communication=communication)


def mix(num_v100: int, num_p100: int, num_virtual_nodes: int) -> list[GpusOfType]:
    return [
        gpus("P100", num_p100, num_virtual_nodes, 1.0, communication=SAME_FOR_ALL),
        gpus("V100", num_v100, num_virtual_nodes, V100_SPEED, communication=SAME_FOR_ALL),
    ]


def split(types: list[GpusOfType], num_virtual_nodes: int) -> VirtualNodeSplit:
    found = split_virtual_nodes(types, num_virtual_nodes)
    assert isinstance(found, VirtualNodeSplit)
    return found


def test_the_published_gains_imply_a_v100_that_is_about_four_times_as_fast_as_a_p100() -> None:
    assert round(V100_SPEED, 2) == 4.43
    assert round(COMMUNICATION) == 465


def test_h3_is_split_as_in_table_4() -> None:
    found = split(mix(2, 8, 16), 16)
    assert found.counts == {"V100": (4, 4), "P100": (1,) * 8}
    assert found.alone_s["V100"] == pytest.approx(GAIN_OVER_V100 * found.step_s)
    assert found.alone_s["P100"] == pytest.approx(GAIN_OVER_P100 * found.step_s)
    assert found.gain == pytest.approx(0.423)
    of_both_throughputs = found.step_s**-1 / sum(1 / alone_s for alone_s in found.alone_s.values() if alone_s)
    assert of_both_throughputs == pytest.approx(0.736, abs=5e-4)


def test_h2_is_split_as_in_table_4() -> None:
    assert split(mix(2, 4, 16), 16).counts == {"V100": (6, 6), "P100": (1,) * 4}


def test_h1_stays_on_v100_with_the_batch_sizes_of_the_paper_and_is_mixed_with_finer_ones() -> None:
    coarse, fine = split(mix(2, 2, 8), 8), split(mix(2, 2, 32), 32)
    assert coarse.counts == {"V100": (4, 4)}
    assert coarse.step_s / (1024 + COMMUNICATION) - 1 == pytest.approx(-0.066, abs=5e-4)  # 3072:1024 would be slower
    assert fine.counts == {"V100": (13, 13), "P100": (3, 3)}
    assert fine.gain == pytest.approx(0.1276, abs=5e-5)


def test_the_objective_as_printed_balances_the_wrong_times() -> None:
    """It multiplies the step time of a GPU's whole batch by its virtual nodes."""
    types, best = mix(2, 8, 32), split(mix(2, 8, 32), 32)
    printed = [
        GpusOfType(
            name=gpus.name,
            num_gpus=gpus.num_gpus,
            step_s_V=tuple(count * step_s for count, step_s in enumerate(gpus.step_s_V, start=1)),
        )
        for gpus in types
    ]
    found = split_virtual_nodes(printed, 32)
    assert isinstance(found, VirtualNodeSplit)
    computation = max(g.step_s_V[max(found.counts[g.name]) - 1] for g in types)
    assert found.counts == {"V100": (6, 6), "P100": (3, 3, 3, 3, 3, 3, 2)}
    assert computation == 768
    assert best.step_s - COMMUNICATION == pytest.approx(512)


def test_the_uneven_split_of_figure_7_is_faster_than_the_even_one() -> None:
    """The paper says 44 %; without communication it would be 50 %."""
    even, uneven = 2048 + COMMUNICATION, 1024 + COMMUNICATION
    assert 1 - uneven / even == pytest.approx(0.407, abs=5e-4)
    assert 3072 / V100_SPEED < 1024


def test_a_mix_is_taken_only_where_it_gains_more_than_the_margin() -> None:
    types = [gpus("fast", 2, 64, 100.0), gpus("slow", 1, 64, 6.5)]
    stays, mixes = split_virtual_nodes(types, 64), split_virtual_nodes(types, 64, least_gain=0.03)
    assert isinstance(stays, VirtualNodeSplit)
    assert isinstance(mixes, VirtualNodeSplit)
    assert stays.counts == {"fast": (32, 32)}
    assert mixes.counts == {"fast": (31, 31), "slow": (2,)}
    assert stays.gain == mixes.gain == pytest.approx(32 / 31 - 1)
    assert stays.mixed_s == mixes.step_s < stays.step_s


def test_memory_limits_a_type_and_the_rest_goes_to_slower_gpus() -> None:
    small, large = gpus("small-fast", 2, 16, 10.0, most=3), gpus("large-slow", 2, 16, 1.0)
    found = split([small, large], 16)
    assert found.counts == {"small-fast": (3, 3), "large-slow": (5, 5)}
    assert found.alone_s["small-fast"] is None


def test_types_that_only_together_hold_the_job_are_mixed_without_a_gain() -> None:
    found = split_virtual_nodes([gpus("a", 1, 8, 1.0, most=5), gpus("b", 1, 8, 1.0, most=5)], 8, least_gain=9.0)
    assert isinstance(found, VirtualNodeSplit)
    assert found.counts == {"a": (4,), "b": (4,)}
    assert found.gain is None


def test_too_little_memory_names_what_each_type_holds() -> None:
    found = split_virtual_nodes([gpus("a", 2, 32, 1.0, most=5), GpusOfType(name="b", num_gpus=9, step_s_V=())], 32)
    assert found == TooLittleMemory(num_virtual_nodes=32, most_per_gpu={"a": (5, 2), "b": (0, 9)})
    assert str(found) == (
        "32 virtual nodes do not fit the memory of the GPUs (none on each of 9 b, 5 on each of 2 a); "
        "take more GPUs, or a smaller global batch"
    )


def test_communication_that_grows_with_the_workers_leaves_gpus_idle() -> None:
    types = [GpusOfType(name="a", num_gpus=8, step_s_V=(1.0, 1.1, 1.2, 1.3))]
    communicating = [replace(types[0], communication=CommunicationTimes((2, 4, 8), (0.1, 0.5, 2.0)))]
    few = split_virtual_nodes(communicating, 8)
    many = split_virtual_nodes(types, 8)
    assert isinstance(few, VirtualNodeSplit)
    assert isinstance(many, VirtualNodeSplit)
    assert (few.counts, few.step_s) == ({"a": (4, 4)}, 1.3 + 0.1)
    assert (many.counts, many.step_s) == ({"a": (1,) * 8}, 1.0)


def test_gpus_that_communicate_for_longer_compute_less() -> None:
    """A virtual node takes 1 s on the fast GPU and 4 s on a slow one."""
    fast = gpus("fast", 1, 16, BATCH_SIZE / 16, communication=CommunicationTimes((2, 5), (1.0, 1.0)))
    slow = gpus("slow", 4, 16, BATCH_SIZE / 64)
    alike = split_virtual_nodes([fast, replace(slow, communication=fast.communication)], 16)
    unlike = split_virtual_nodes([fast, replace(slow, communication=fast.communication.times(4.0))], 16)
    assert isinstance(alike, VirtualNodeSplit)
    assert isinstance(unlike, VirtualNodeSplit)
    assert (alike.counts, alike.step_s) == ({"fast": (8,), "slow": (2, 2, 2, 2)}, 8.0 + 1.0)
    assert (unlike.counts, unlike.step_s) == ({"fast": (11,), "slow": (2, 2, 1)}, 8.0 + 4.0)


def test_of_equally_fast_types_the_first_by_name_is_filled() -> None:
    types = [gpus(name, 1, 2, 1.0) for name in ("b", "a", "c")]
    assert split(types, 1).counts == {"a": (1,)}


@pytest.mark.parametrize(
    ("types", "num_virtual_nodes", "least_gain"),
    [([], 1, 0.0), ("ab", 0, 0.0), ("ab", 1, -0.1), ("ab", 1, float("nan")), ("aa", 1, 0.0)],
)
def test_an_impossible_question_is_an_error(types: str, num_virtual_nodes: int, least_gain: float) -> None:
    with pytest.raises(ValueError):
        split_virtual_nodes([gpus(name, 1, 1, 1.0) for name in types], num_virtual_nodes, least_gain=least_gain)


@pytest.mark.parametrize(
    ("num_gpus", "step_s_V"), [(0, (1.0,)), (1, (2.0, 1.0)), (1, (0.0,)), (1, (1.0, float("nan")))]
)
def test_impossible_gpus_are_an_error(num_gpus: int, step_s_V: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="a"):
        GpusOfType(name="a", num_gpus=num_gpus, step_s_V=step_s_V)
