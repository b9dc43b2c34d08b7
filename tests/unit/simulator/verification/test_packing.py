"""The search finds packings over time whose migrations are paid, and the checker rejects each kind of wrong one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.simulator.verification import packing_search
from elasticflow.simulator.verification.certificate_checker import check_packing
from elasticflow.simulator.verification.certificates import (
    CertifiedJob,
    CertifiedPromise,
    Held,
    Level,
    Packed,
    PackedNodes,
    PackingCertificate,
    from_json,
    sizes_within_a_node,
    to_json,
)
from elasticflow.simulator.verification.packing_search import find_packing

NOW_S, STOP_S = 100.0, 2.0
TWO_NODES = PackedNodes.of((4, 4))


def promise(job_id: str, *segments: tuple[float, float, int], moves: float = 0.0, holds: int = 0) -> CertifiedPromise:
    """A job of one iteration/s on each GPU, whose schedule spares so many moves on its first number of GPUs."""
    schedule, done, held, until_s = tuple(Held(*segment) for segment in segments), 0.0, holds, NOW_S
    for start_s, end_s, num_gpus in schedule:
        stop_s = STOP_S if num_gpus != held or start_s > until_s else 0.0
        done, held, until_s = done + num_gpus * (end_s - start_s - stop_s), num_gpus, end_s
    job = CertifiedJob(
        job_id=job_id,
        remaining_iterations=done - moves * STOP_S * schedule[0].num_gpus,
        deadline_s=1e6,
        levels=tuple(Level(num_gpus, float(num_gpus), STOP_S) for num_gpus in (1, 2, 4, 8)),
        current_num_gpus=holds,
    )
    return CertifiedPromise(job=job, schedule=schedule)


def packed(
    promises: tuple[CertifiedPromise, ...], positions: dict[str, tuple[int, ...]], nodes: PackedNodes = TWO_NODES
) -> PackingCertificate | None:
    packing = find_packing(promises, positions, nodes, NOW_S)
    return None if packing is None else certificate(promises, positions, *packing, nodes=nodes)


def certificate(
    promises: tuple[CertifiedPromise, ...],
    positions: dict[str, tuple[int, ...]],
    *packing: Packed,
    nodes: PackedNodes = TWO_NODES,
) -> PackingCertificate:
    return PackingCertificate(
        now_s=NOW_S,
        nodes=nodes,
        promises=promises,
        positions=positions,
        packing=packing,
    )


def with_a_wide_job(
    moves: float, wide_from_s: float = 150.0
) -> tuple[tuple[CertifiedPromise, ...], dict[str, tuple[int, ...]]]:
    """A job on one GPU of each node, and one that needs a whole node later."""
    small = [promise(job_id, (NOW_S, 300.0, 1), moves=moves, holds=1) for job_id in ("a", "b")]
    return (*small, promise("wide", (wide_from_s, 200.0, 4))), {"a": (0,), "b": (4,)}


def test_a_job_that_can_pay_moves_when_another_needs_its_node() -> None:
    found = packed(*with_a_wide_job(moves=1.5))
    assert found is not None
    assert check_packing(found) == []
    moved = [each for each in found.packing if each.from_s == 150.0 and each.job_id != "wide"]
    assert len(moved) == 1


def test_chance_finds_right_packings_where_no_order_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_search, "_ORDERS", ())
    found = packed(*with_a_wide_job(moves=1.5))
    assert found is not None
    assert check_packing(found) == []
    assert found == packed(*with_a_wide_job(moves=1.5)), "the seeds are fixed"
    monkeypatch.setattr(packing_search, "RESTARTS", 0)
    assert packed(*with_a_wide_job(moves=1.5)) is None


def test_where_no_job_can_pay_for_the_block_there_is_no_packing() -> None:
    assert packed(*with_a_wide_job(moves=0.5)) is None


def test_a_job_whose_number_of_gpus_changes_then_moves_for_nothing() -> None:
    small = promise("a", (NOW_S, 150.0, 1), (150.0, 300.0, 2), holds=1)
    wide = promise("wide", (150.0, 200.0, 4))
    found = packed((small, promise("b", (NOW_S, 300.0, 1), holds=1), wide), {"a": (0,), "b": (4,)})
    assert found is not None
    assert check_packing(found) == []


def test_a_job_pays_for_each_of_its_moves() -> None:
    """`a` makes room for two jobs, one after the other, on another node each time."""
    wide = [promise(f"wide-{at}", (start_s, start_s + 20.0, 4)) for at, start_s in enumerate((120.0, 160.0))]
    kept = promise("kept", (NOW_S, 150.0, 2), holds=2)
    for moves, is_found in ((0.9, False), (1.1, True)):
        small = promise("a", (NOW_S, 300.0, 1), moves=moves, holds=1)
        found = packed((small, kept, *wide), {"a": (0,), "kept": (4, 5)})
        assert (found is not None) == is_found
        assert found is None or check_packing(found) == []


def test_a_job_in_fragments_pays_for_its_way_to_a_block() -> None:
    for moves, is_found in ((0.9, False), (1.1, True)):
        apart = promise("a", (NOW_S, 300.0, 2), moves=moves, holds=2)
        found = packed((apart,), {"a": (1, 4)})
        assert (found is not None) == is_found
        assert found is None or check_packing(found) == []


def test_a_job_of_two_nodes_gets_any_two() -> None:
    three = PackedNodes.of((4, 4, 4))
    found = packed((promise("a", (NOW_S, 300.0, 1), holds=1), promise("wide", (NOW_S, 200.0, 8))), {"a": (5,)}, three)
    assert found is not None
    assert check_packing(found) == []
    assert {start for each in found.packing if each.job_id == "wide" for start in each.starts} == {0, 8}


PAIR, BESIDE = promise("a", (NOW_S, 200.0, 2), holds=2), promise("b", (150.0, 250.0, 2))
RIGHT = (Packed("a", NOW_S, 2, (0,)), Packed("b", 150.0, 2, (2,)))


def problems(*packing: Packed) -> list[str]:
    return check_packing(certificate((PAIR, BESIDE), {"a": (0, 1)}, *packing))


def test_a_right_packing_has_no_problem_and_survives_json() -> None:
    assert problems(*RIGHT) == []
    right = certificate((PAIR, BESIDE), {"a": (0, 1)}, *RIGHT)
    assert from_json(to_json(right)) == right


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ((RIGHT[0],), "b: it has no GPUs from 150.0 s on"),
        ((RIGHT[0], Packed("b", 160.0, 2, (2,))), "b: it has no GPUs from 150.0 s on"),
        ((RIGHT[0], Packed("b", 150.0, 2, (0,))), "b and a have GPU 0 at 150.0 s"),
        ((RIGHT[0], Packed("b", 150.0, 2, (1,))), "b: its GPUs at 150.0 s are no block of 2"),
        ((RIGHT[0], Packed("b", 150.0, 1, (2, 4))), "b: its GPUs at 150.0 s are no block of 2"),
        ((RIGHT[0], Packed("b", 150.0, 2, (8,))), "b: its GPUs at 150.0 s are no block of 2"),
        ((RIGHT[0], Packed("b", 150.0, 2, (2, 4))), "b: its GPUs at 150.0 s are no block of 2"),
        ((*RIGHT, Packed("b", 250.0, 2, (4,))), "b: it has GPUs at 250.0 s, when its schedule holds none"),
        ((*RIGHT, Packed("c", 150.0, 2, (4,))), "c: it is not promised"),
        ((*RIGHT, Packed("a", 120.0, 2, (4,))), "a: its moves take 4.0 iterations, and its schedule spares 0.0"),
        ((Packed("a", NOW_S, 2, (4,)), RIGHT[1]), "a: its moves take 4.0 iterations, and its schedule spares 0.0"),
    ],
)
def test_each_kind_of_wrong_packing_is_rejected(wrong: tuple[Packed, ...], said: str) -> None:
    assert problems(*wrong) == [said]


def test_a_schedule_that_ends_its_job_late_packs_nothing() -> None:
    late = replace(PAIR, job=replace(PAIR.job, remaining_iterations=1e4))
    assert find_packing((late,), {"a": (0, 1)}, TWO_NODES, NOW_S) is not None, "it moves nowhere"
    assert find_packing((late,), {"a": (1, 4)}, TWO_NODES, NOW_S) is None


@st.composite
def schedules(draw: st.DrawFn) -> tuple[PackedNodes, tuple[CertifiedPromise, ...]]:
    """Jobs that begin from now on, of at most as many GPUs together as there are, each rich enough for any moves."""
    nodes = PackedNodes.of(draw(st.lists(st.integers(1, 12), min_size=1, max_size=5)))
    total, held = sum(nodes.num_gpus), [0] * 12
    promises = list[CertifiedPromise]()
    for number in range(draw(st.integers(1, 14))):
        begin, length, num_gpus = draw(st.integers(0, 9)), draw(st.integers(1, 3)), 1 << draw(st.integers(0, 3))
        if num_gpus > total or any(held[at] + num_gpus > total for at in range(begin, begin + length)):
            continue
        for at in range(begin, begin + length):
            held[at] += num_gpus
        times_s = NOW_S + 100.0 * begin, NOW_S + 100.0 * (begin + length)
        promises.append(promise(f"job-{number}", (*times_s, num_gpus), moves=20.0))
    return nodes, tuple(promises)


@given(schedules())
def test_powers_of_two_that_fit_by_number_always_have_a_packing_if_jobs_can_pay(
    drawn: tuple[PackedNodes, tuple[CertifiedPromise, ...]],
) -> None:
    nodes, promises = drawn
    found = packed(promises, {}, nodes)
    assert found is not None
    assert check_packing(found) == []


@pytest.mark.parametrize(
    ("num_gpus", "within"),
    [((8, 8), {1, 2, 4, 8}), ((6, 6), {1, 2}), ((6,), {1, 2, 4}), ((8, 4), {1, 2, 4, 8}), ((8, 4, 4), {1, 2, 4})],
)
def test_a_block_is_on_two_nodes_where_they_leave_two_halves(num_gpus: tuple[int, ...], within: set[int]) -> None:
    assert sizes_within_a_node(num_gpus) == within


def test_a_job_that_counts_on_one_node_is_on_one_also_where_nodes_have_several_sizes() -> None:
    nodes = PackedNodes.of((4, 8))
    found = packed((promise("a", (NOW_S, 300.0, 8)), promise("b", (NOW_S, 300.0, 4))), {}, nodes)
    assert found is not None
    assert check_packing(found) == []
    assert {each.job_id: each.starts for each in found.packing} == {"a": (4,), "b": (0,)}
    apart = (Packed("a", NOW_S, 8, (0,)), Packed("b", NOW_S, 4, (8,)))
    assert check_packing(replace(found, packing=apart)) == ["a: its GPUs at 100.0 s are no block of 8"]
