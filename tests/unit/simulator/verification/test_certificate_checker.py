"""The checker accepts correct certificates and rejects each kind of wrong one, made by hand."""

import math
from dataclasses import replace

import pytest

from elasticflow.shared.messages.rejection import (
    InfeasibilityCertificate,
    InfeasibleProgram,
    OverloadedInterval,
    Overpriced,
    PricedInterval,
    TooSlowAlone,
    Unproven,
)
from elasticflow.simulator.verification.certificate_checker import Checker
from elasticflow.simulator.verification.certificates import (
    CertifiedJob,
    CertifiedPromise,
    Held,
    Level,
    PromiseCertificate,
    RejectionCertificate,
    from_json,
    to_json,
)

LEVELS = (Level(1, 1.0, 2.0), Level(2, 2.0, 3.0), Level(4, 3.0, 4.0))


def certified(job_id: str = "a", iterations: float = 8.0, deadline_s: float = 110.0, **more: object) -> CertifiedJob:
    return CertifiedJob(
        job_id=job_id, remaining_iterations=iterations, deadline_s=deadline_s, **({"levels": LEVELS} | more)
    )


def promise(*segments: tuple[float, float, int], **of_job: object) -> CertifiedPromise:
    return CertifiedPromise(job=certified(**of_job), schedule=tuple(Held(*segment) for segment in segments))


def yes(*promises: CertifiedPromise, now_s: float = 100.0, num_gpus: int = 4, **more: object) -> PromiseCertificate:
    return PromiseCertificate(now_s=now_s, num_gpus=num_gpus, promises=promises, **more)


def problems(*promises: CertifiedPromise, **more: object) -> list[str]:
    return Checker().check_promises(yes(*promises, **more))


def test_gpus_that_no_buddy_block_has_are_rejected() -> None:
    levels = (*LEVELS, Level(3, 2.5, 4.0))
    assert problems(promise((100.0, 110.0, 3), levels=levels)) == ["a: 3 GPUs are no buddy block"]


def test_gpus_that_are_no_whole_replicas_are_rejected() -> None:
    whole = promise((100.0, 110.0, 4), gpus_per_replica=4)
    assert not problems(whole)
    half = promise((100.0, 110.0, 2), gpus_per_replica=4)
    assert problems(half) == ["a: 2 GPUs are no whole replicas of 4"]


# --- yes: one schedule ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kept",
    [
        promise((100.0, 110.0, 1)),  # a stop of 2 s, then 8 iterations
        promise((103.0, 110.0, 2)),  # a stop of 3 s, then 4 s at 2/s
        promise((100.0, 108.0, 1), current_num_gpus=1),  # holds it already
        promise((90.0, 108.0, 1), current_num_gpus=1),  # the past does not count
        promise((80.0, 90.0, 4), (95.0, 108.0, 1), current_num_gpus=1),
        promise((100.0, 110.0, 1), current_num_gpus=1, stalled_until_s=102.0),
        promise((100.0, 108.0, 1), current_num_gpus=1, stalled_until_s=99.0),
        promise((100.0, 107.0, 2), current_num_gpus=1, stalled_until_s=109.0),  # a new stop ends the old one
        promise((100.0, 105.0, 1), (105.0, 110.0, 1)),  # the same GPUs go on
        promise((100.0, 106.0, 1), (106.0, 111.0, 2), iterations=6.0, deadline_s=110.0),  # ends before its GPUs
        promise(iterations=0.0),
    ],
)
def test_a_schedule_that_keeps_its_promise_is_accepted(kept: CertifiedPromise) -> None:
    assert problems(kept) == []


@pytest.mark.parametrize(
    "broken",
    [
        promise(),
        promise((100.0, 109.0, 1)),  # the stop is not charged
        promise((100.0, math.nextafter(110.0, 0.0), 1)),  # one ulp of work is missing
        promise((100.0, 110.0, 1), deadline_s=math.nextafter(110.0, 0.0)),  # one ulp late
        promise((100.0, 110.0, 1), iterations=math.nextafter(8.0, 9.0)),
        promise((100.0, 108.0, 1), current_num_gpus=2),  # it holds others
        promise((math.nextafter(100.0, 101.0), 108.5, 1), current_num_gpus=1),  # a gap of an ulp costs a stop
        promise((100.0, 109.0, 1), current_num_gpus=1, stalled_until_s=102.0),
        promise((100.0, 105.0, 1), (106.0, 110.0, 1)),  # after a gap it stops again
        promise((100.0, 105.0, 1), (105.0, 107.0, 2), (107.0, 110.0, 1)),  # all of a short stay is a stop
        promise((100.0, 112.0, 1), deadline_s=109.0),  # what is done after the deadline
        promise((90.0, 108.0, 1)),  # what was done before now, on GPUs that it does not hold
    ],
)
def test_a_schedule_that_ends_late_is_rejected(broken: CertifiedPromise) -> None:
    deadline_s = broken.job.deadline_s
    assert problems(broken) == [f"a: its schedule does not end it by {deadline_s} s"]


@pytest.mark.parametrize(
    "nonsense",
    [
        promise((100.0, 120.0, 3)),  # no level
        promise((100.0, 120.0, 0)),
        promise((100.0, 120.0, -1)),
        promise((105.0, 100.0, 1)),
        promise((100.0, 105.0, 1), (104.0, 110.0, 1)),  # twice at once
        promise((100.0, math.inf, 1)),
        promise((-math.inf, 120.0, 1)),
        promise((100.0, math.nan, 1)),
        promise((math.nan, 120.0, 1)),
    ],
)
def test_an_invalid_schedule_is_rejected(nonsense: CertifiedPromise) -> None:
    (problem,) = problems(nonsense)
    assert "out of order" in problem or "does not run on" in problem


def test_the_check_is_exact_for_large_numbers() -> None:
    """Whole numbers show a difference that floats of seconds do not resolve."""
    levels = (Level(1, 0.1, 0.0),)
    start_s, end_s = 1.7e9, 1.7e9 + 10.0
    done = certified(iterations=0.1 * 10, deadline_s=end_s, levels=levels)  # rounded up: 10 * 0.1 < 1 + 5.6e-17
    exactly = replace(done, remaining_iterations=math.nextafter(1.0, 2.0))
    for job, expected in ((done, 0), (exactly, 1)):
        claim = CertifiedPromise(job=job, schedule=(Held(start_s, end_s, 1),))
        assert len(problems(claim, now_s=start_s)) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"iterations": math.nan},
        {"deadline_s": math.inf},
        {"stalled_until_s": math.nan},
        {"levels": (Level(1, 0.0, 1.0),)},
        {"levels": (Level(1, 1.0, -1.0),)},
        {"levels": (Level(0, 1.0, 1.0),)},
        {"levels": (Level(1, math.inf, 1.0),)},
        {"levels": (Level(1, 1.0, math.nan),)},
        {"levels": (Level(1, 1.0, 1.0), Level(1, 2.0, 1.0))},
    ],
)
def test_a_job_with_impossible_numbers_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="of a must"):
        certified(**wrong)


# --- yes: all together ----------------------------------------------------------------------------------


def test_all_gpus_may_be_held_at_every_instant() -> None:
    first, second = promise((100.0, 110.0, 4)), promise((110.0, 120.0, 4), job_id="b", deadline_s=120.0)
    assert problems(first, second) == []
    assert problems(second, first) == []


def test_one_gpu_too_many_for_one_instant_is_seen() -> None:
    first = promise((100.0, math.nextafter(110.0, 111.0), 1))
    second = promise((110.0, 120.0, 4), job_id="b", deadline_s=120.0)
    assert problems(first, second) == ["5 GPUs are held at 110.0 s, of 4"]
    assert problems(first, second, num_gpus=5) == []
    assert problems(first, second, now_s=110.5)[-1:] != ["5 GPUs are held at 110.0 s, of 4"], "that is over"


def test_promises_of_earlier_certificates_still_hold_their_gpus() -> None:
    checker = Checker()
    assert checker.check_promises(yes(promise((100.0, 110.0, 4)))) == []
    other = promise((105.0, 112.0, 1), job_id="b", deadline_s=120.0, iterations=2.0)
    assert checker.check_promises(yes(other, now_s=101.0)) == ["5 GPUs are held at 105.0 s, of 4"]
    assert checker.check_promises(yes(now_s=102.0)) == ["5 GPUs are held at 105.0 s, of 4"], "nothing changed"
    moved = promise((102.0, 105.0, 4), current_num_gpus=4, iterations=6.0)
    assert checker.check_promises(yes(moved, now_s=102.0)) == []
    assert checker.check_promises(yes(ended=("a",), num_gpus=1, now_s=103.0)) == []
    assert checker.check_promises(yes(ended=("b",), num_gpus=0, now_s=103.0)) == []


def test_a_deadline_cannot_be_moved_unless_the_promise_ends() -> None:
    checker, first = Checker(), promise((100.0, 110.0, 1))
    later = promise((100.0, 110.0, 1), deadline_s=111.0)
    assert checker.check_promises(yes(first)) == []
    assert checker.check_promises(yes(later)) == ["a: it was promised for 110.0 s"]
    again = Checker()
    assert again.check_promises(yes(first)) == []
    assert again.check_promises(yes(later, ended=("a",))) == []


# --- no -------------------------------------------------------------------------------------------------


def promised_once(job: CertifiedJob) -> CertifiedPromise:
    """Promised to the checker, without iterations left."""
    return CertifiedPromise(job=replace(job, remaining_iterations=0.0), schedule=())


def lies(
    infeasibility_certificate: InfeasibilityCertificate,
    arriving_job: CertifiedJob,
    *promised: CertifiedJob,
    num_gpus: int = 4,
) -> list[str]:
    checker = Checker()
    checker.check_promises(yes(*map(promised_once, promised)))
    no = RejectionCertificate(
        now_s=100.0,
        num_gpus=num_gpus,
        arriving_job=arriving_job,
        promised=promised,
        infeasibility_certificate=infeasibility_certificate,
    )
    return checker.check_rejection(no)


def test_too_slow_alone() -> None:
    slow = certified(iterations=30.0, deadline_s=113.0)  # 4 + 10 s on 4 GPUs
    assert lies(TooSlowAlone(earliest_end_s=114.0), slow) == []
    assert lies(TooSlowAlone(earliest_end_s=114.0), replace(slow, deadline_s=114.0)) != []
    assert lies(TooSlowAlone(earliest_end_s=113.5), slow) != [], "a wrong number is a lie too"
    assert lies(TooSlowAlone(earliest_end_s=None), slow) != []
    assert lies(TooSlowAlone(earliest_end_s=118.0), slow, num_gpus=2) == []
    assert lies(TooSlowAlone(earliest_end_s=None), replace(slow, levels=LEVELS[2:]), num_gpus=2) == []
    running = replace(slow, current_num_gpus=4)
    assert lies(TooSlowAlone(earliest_end_s=110.0), running) != []
    assert lies(TooSlowAlone(earliest_end_s=113.0), replace(running, stalled_until_s=103.0)) != []
    assert lies(TooSlowAlone(earliest_end_s=114.0), replace(running, stalled_until_s=200.0)) == []


def overloaded(needed: float, start_s: float = 100.0, end_s: float = 110.0, num_gpus: int = 4) -> OverloadedInterval:
    available = num_gpus * (end_s - start_s)
    return OverloadedInterval(start_s=start_s, end_s=end_s, needed_gpu_seconds=needed, available_gpu_seconds=available)


def test_an_overloaded_interval() -> None:
    """Two jobs of 14 iterations in 10 s: each needs 2 GPUs for 7 s, and 6 GPU-seconds for the stop."""
    two = certified("a", iterations=14.0), certified("b", iterations=14.0)
    assert lies(overloaded(40.0), *two) != [], "just so they fit"
    assert lies(overloaded(40.0, num_gpus=3), *two, num_gpus=3) == []
    assert lies(overloaded(41.0, num_gpus=3), *two, num_gpus=3) != [], "a wrong number is a lie too"
    assert lies(overloaded(40.0, num_gpus=2), *two, num_gpus=3) != []
    more = replace(two[0], remaining_iterations=14.1), two[1]
    assert lies(overloaded(40.1), *more) == []
    held = replace(two[1], current_num_gpus=2)
    assert lies(overloaded(34.1), more[0], held) != [], "who holds its GPUs already pays no stop"
    patient = replace(two[1], deadline_s=200.0)
    assert lies(overloaded(40.1), more[0], patient) != [], "it can wait for the end of the interval"
    assert lies(overloaded(40.1, 100.0, 109.0), *more) != [], "there are fewer GPU-seconds within 9 s"


def test_only_what_is_promised_counts_and_only_once() -> None:
    arriving_job, other = certified("a", iterations=14.1), certified("b", iterations=14.0)
    infeasibility_certificate = overloaded(40.1)
    checker = Checker()
    no = RejectionCertificate(
        now_s=100.0,
        num_gpus=4,
        arriving_job=arriving_job,
        promised=(other,),
        infeasibility_certificate=infeasibility_certificate,
    )
    assert checker.check_rejection(no) == ["b: it is not promised"]
    checker.check_promises(yes(promised_once(replace(other, deadline_s=120.0))))
    assert checker.check_rejection(no) == ["b: it was promised for 120.0 s"]
    checker.check_promises(yes(promised_once(other), ended=("b",)))
    assert checker.check_rejection(no) == []
    assert checker.check_rejection(replace(no, promised=(other, other))) == ["b: it is counted twice"]
    assert checker.check_rejection(replace(no, promised=(other, arriving_job))) == ["a: it is not promised"]


def infeasible(*prices: tuple[float, float, float]) -> InfeasibleProgram:
    return InfeasibleProgram(
        prices=tuple(PricedInterval(start_s=start, end_s=end, price=price) for start, end, price in prices)
    )


def test_an_infeasible_program() -> None:
    """No interval alone is overloaded, but higher speed costs more GPU-seconds: prices show both."""
    urgent = certified("urgent", 40.0, levels=(Level(4, 4.0, 0.0),))  # all GPUs for the first 10 s
    patient = certified("patient", 20.0, 120.0, levels=(Level(1, 1.0, 0.0), Level(4, 2.0, 0.0)))  # all of the next 10
    small = certified("small", 1.0, 120.0, levels=(Level(1, 1.0, 0.0),))
    prices = infeasible((100.0, 110.0, 3.0), (110.0, 120.0, 1.0))  # they pay 120 + 40 + 1, the GPUs earn 160
    assert lies(prices, small, urgent, patient) == []
    assert lies(prices, patient, urgent) != [], "without the small one all fits"
    assert lies(prices, small, urgent, replace(patient, deadline_s=121.0)) != []
    for start_s, end_s in ((100.0, 110.0), (110.0, 120.0), (100.0, 120.0)):
        assert lies(infeasible((start_s, end_s, 1.0)), small, urgent, patient) != []


@pytest.mark.parametrize(
    "prices",
    [
        infeasible(),
        infeasible((100.0, 110.0, -1.0)),
        infeasible((100.0, 105.0, 1.0), (105.0, 110.0, -1e-300)),
        infeasible((100.0, 110.0, math.inf)),
        infeasible((100.0, 110.0, math.nan)),
        infeasible((99.0, 110.0, 1.0)),  # prices of the past do not count
        infeasible((110.0, 100.0, 1.0)),
        infeasible((100.0, 110.0, 1.0), (109.0, 112.0, 1.0)),  # priced twice
        infeasible((100.0, 110.0, 0.0)),
    ],
)
def test_prices_that_prove_nothing(prices: InfeasibleProgram) -> None:
    two = certified("a", iterations=14.1), certified("b", iterations=14.0)
    checker = Checker()
    checker.check_promises(yes(promised_once(two[1])))
    no = RejectionCertificate(
        now_s=100.0, num_gpus=4, arriving_job=two[0], promised=two[1:], infeasibility_certificate=prices
    )
    assert checker.check_rejection(no) != []
    assert checker.check_rejection(replace(no, infeasibility_certificate=infeasible((100.0, 110.0, 1.0)))) == []


def test_an_overpriced_job() -> None:
    job = certified(iterations=8.0)  # 8 GPU-seconds, and 2 for the stop
    honest = Overpriced(gpu_seconds=10.0, price=0.2, value=1.0, price_limit=0.1)
    assert lies(honest, job) == []
    assert lies(replace(honest, price=0.1), job) != [], "at that price it is accepted"
    assert lies(replace(honest, value=0.0), job) != []
    assert lies(replace(honest, price_limit=0.2), job) != []
    assert lies(replace(honest, gpu_seconds=9.0, price_limit=1 / 9), job) != [], "it needs more GPU-seconds"
    assert lies(replace(honest, gpu_seconds=math.nan), job) != []
    assert lies(replace(honest, crowded_from_s=150.0, crowded_until_s=160.0), job) == []
    for from_s, until_s in ((0.0, 160.0), (150.0, 150.0), (160.0, 150.0)):
        assert lies(replace(honest, crowded_from_s=from_s, crowded_until_s=until_s), job) != [], (
            "no interval from now on"
        )


@pytest.mark.parametrize(
    "infeasibility_certificate",
    [
        TooSlowAlone(earliest_end_s=None),
        overloaded(0.1),
        infeasible((0.1, 0.2, 1e-300), (0.3, 1e11, 1e12)),
        Overpriced(gpu_seconds=0.1, price=0.7, value=1.0, price_limit=1 / 3),
        Unproven(earliest_deadline_s=110.1),
    ],
)
def test_certificates_survive_json_to_the_last_bit(
    infeasibility_certificate: InfeasibilityCertificate,
) -> None:
    job = certified(iterations=1 / 3, deadline_s=math.nextafter(0.1, 0.0))
    no = RejectionCertificate(
        now_s=0.1,
        num_gpus=4,
        arriving_job=job,
        promised=(certified(),),
        infeasibility_certificate=infeasibility_certificate,
    )
    assert from_json(to_json(no)) == no
    promised = yes(promise((0.1, math.nextafter(0.3, 1.0), 2), deadline_s=1.7e9 + 1e-6), ended=("b",))
    assert from_json(to_json(promised)) == promised


def test_unproven_offers_a_later_deadline_than_the_requested_one() -> None:
    assert lies(Unproven(earliest_deadline_s=110.5), certified()) == []
    assert lies(Unproven(earliest_deadline_s=None), certified()) == []
    assert lies(Unproven(earliest_deadline_s=110.0), certified()) != []
