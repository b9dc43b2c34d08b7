"""Which proof of infeasibility a refusal gets: the simplest."""

from dataclasses import dataclass, replace

import pytest

from elasticflow.shared.messages.rejection import (
    InfeasibleProgram,
    OverloadedInterval,
    TooSlowAlone,
)
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.shared.scheduling.proofs.infeasibility import find_infeasibility_proof
from elasticflow.shared.scheduling.proofs.linear_program import relax
from elasticflow.shared.scheduling.proofs.payment_bound import demands
from elasticflow.shared.state.nodes import PromisableGpus

LINEAR = ScalingCurve((1, 2, 4), (1.0, 2.0, 4.0))
FREE = ResizeCost.flat(0.0)


@dataclass(frozen=True)
class Asked:
    """A job as `find_infeasibility_proof` wants to know it."""

    remaining_iterations: float
    deadline_s: float
    curve: ScalingCurve = LINEAR
    current_num_gpus: int = 0
    stalled_until_s: float = 0.0
    resize_cost: ResizeCost = FREE


def test_a_job_that_is_too_slow_alone() -> None:
    stop = ResizeCost((1, 4), (1.0, 3.0))
    slow = Asked(40.0, 112.0, resize_cost=stop)
    assert find_infeasibility_proof(slow, [], PromisableGpus(4), 100.0) == TooSlowAlone(earliest_end_s=113.0)
    assert find_infeasibility_proof(slow, [], PromisableGpus(2), 100.0) == TooSlowAlone(earliest_end_s=121.0)
    wide = replace(slow, curve=ScalingCurve((4,), (4.0,)))
    assert find_infeasibility_proof(wide, [], PromisableGpus(2), 100.0) == TooSlowAlone(earliest_end_s=None)
    held = find_infeasibility_proof(replace(slow, current_num_gpus=4), [], PromisableGpus(4), 100.0)
    assert held is None


def test_an_interval_that_cannot_hold_them_all() -> None:
    promised = [Asked(20.0, 110.0), Asked(10.0, 1000.0)]
    proof = find_infeasibility_proof(Asked(21.0, 110.0), promised, PromisableGpus(4), 100.0)
    assert proof == OverloadedInterval(start_s=100.0, end_s=110.0, needed_gpu_seconds=41.0, available_gpu_seconds=40.0)
    fits = find_infeasibility_proof(Asked(20.0, 110.0), promised, PromisableGpus(4), 100.0)
    assert fits is None


def test_the_stops_that_none_can_do_without_count() -> None:
    stop = ResizeCost((1, 2), (1.0, 2.0))
    # 2 x 2 and 4 x 2 GPU-seconds for stops
    new, other = Asked(14.0, 110.0, resize_cost=stop), Asked(20.0, 110.0, resize_cost=stop)
    gpus, needed = PromisableGpus(4), 14.0 + 4.0 + 20.0 + 8.0
    assert find_infeasibility_proof(new, [other], gpus, 100.0) == OverloadedInterval(
        start_s=100.0, end_s=110.0, needed_gpu_seconds=needed, available_gpu_seconds=40.0
    )


def test_each_job_pays_its_own_stops() -> None:
    dear, gpus = ResizeCost.flat(4.0), PromisableGpus(4)
    new, other = Asked(5.0, 110.0, resize_cost=dear), Asked(20.0, 110.0)  # 5 + 4, and 20 GPU-seconds of 40
    assert find_infeasibility_proof(new, [other], gpus, 100.0) is None
    proof = find_infeasibility_proof(new, [replace(other, resize_cost=dear)], gpus, 100.0)
    assert isinstance(proof, OverloadedInterval)
    assert proof.needed_gpu_seconds == 5.0 + 4.0 + 20.0 + 16.0


def test_prices_where_no_interval_shows_it() -> None:
    urgent = Asked(40.0, 110.0, ScalingCurve((4,), (4.0,)))
    patient = Asked(20.0, 120.0, ScalingCurve((1, 4), (1.0, 2.0)))
    small = Asked(1.0, 120.0, ScalingCurve((1,), (1.0,)))
    proof = find_infeasibility_proof(small, [urgent, patient], PromisableGpus(4), 100.0)
    assert isinstance(proof, InfeasibleProgram)
    first, second = proof.prices
    assert (first.start_s, first.end_s, first.price) == (100.0, 110.0, 1.0)
    assert (second.start_s, second.end_s) == (110.0, 120.0)
    assert second.price == pytest.approx(1 / 3)
    without = find_infeasibility_proof(small, [urgent, patient], PromisableGpus(4), 100.0, max_variables=0)
    assert without is None
    assert find_infeasibility_proof(small, [urgent], PromisableGpus(4), 100.0) is None


def test_equal_prices_are_told_once() -> None:
    rigid = [Asked(4.0, 101.0 + i, ScalingCurve((4,), (4.0,))) for i in range(6)]
    chain = replace(rigid[0], remaining_iterations=0.5, deadline_s=103.5)
    proof = find_infeasibility_proof(chain, rigid, PromisableGpus(4), 100.0)
    assert isinstance(proof, OverloadedInterval)
    assert proof.needed_gpu_seconds - proof.available_gpu_seconds == pytest.approx(0.5)


def test_a_promise_that_is_lost_already_proves_nothing() -> None:
    lost = Asked(1000.0, 101.0)
    assert find_infeasibility_proof(Asked(4.0, 110.0), [lost], PromisableGpus(4), 100.0) is None


def test_fewer_intervals_bound_from_below() -> None:
    jobs = [Asked(8.0, 102.0 + 3 * i) for i in range(12)]
    asked = demands(jobs, 4, 100.0)
    loads = [
        relaxation.load
        for max_variables in (12, 24, 60, 1000)
        if (relaxation := relax(asked, max_variables=max_variables)) is not None
    ]
    assert len(loads) == 4
    assert loads == sorted(loads)
    assert loads[0] < loads[-1] == pytest.approx(1.0)  # the first job: 8 GPU-seconds in 2 s
    assert relax(asked, max_variables=11) is None
