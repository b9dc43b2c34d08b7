"""Given recent demand, selective admission accepts a submission, or rejects it by price with offers."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY
from elasticflow.services.admission.quote import quote
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import QuoteDeadline, SubmitJob
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.messages.rejection import Overpriced
from elasticflow.shared.scheduling.admission.admission_pricing import FEWEST_SUBMISSIONS
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.state.pool import Demand
from testbed.histories import LINEAR, NOW_S, History, pool, submit

CONCAVE = {1: 1.0, 2: 1.6, 4: 2.4, 8: 3.0}
NUM_GPUS = 8


def asked(*gpu_seconds: float, gap_s: float, until_s: float = NOW_S) -> Demand:
    """Submissions of these GPU-seconds, one every `gap_s` seconds until now."""
    demand = Demand(since_s=until_s - 86_400.0)
    for number, wanted in enumerate(gpu_seconds):
        demand = demand.added(until_s - gap_s * (len(gpu_seconds) - number), wanted, 600.0)
    return demand


CHEAP_FILL_THE_POOL = asked(*[400.0] * 200, gap_s=45.0)  # 8.9 GPUs' worth
SELDOM = asked(*[400.0] * 24, gap_s=3600.0)
RISING = asked(*[400.0] * 60, *[1200.0] * 60, gap_s=90.0)


def busy(demand: Demand, admission: str = "selective") -> History:
    """Eight GPUs, half of them promised for the next hour."""
    known = ("concave/b64", "concave/b128", "concave#sharded/b64", "concave#sharded/b256")
    history = pool(NUM_GPUS, admission="first-come", curves=dict.fromkeys(known, CONCAVE))
    half = submit("half", deadline_s=NOW_S + 3610.0, max_iterations=4 * 3600)
    assert isinstance(history.decided(POLICY, half)[0], events.JobAdmitted)
    config = replace(history.state.config, admission=admission)
    history.then(events.PoolConfigured(config=config, at_s=NOW_S))
    return History(replace(history.state, demand=demand))


def overpriced(job_id: str = "overpriced", **changes: Any) -> SubmitJob:
    """3,600 GPU-seconds at least, on two of the four GPUs that are left; its window is 2,000 s."""
    asked_for = {"model_name": "concave", "deadline_s": NOW_S + 2000.0, "max_iterations": 2880}
    return submit(job_id, **(asked_for | changes))


def said(history: History, *commands: SubmitJob) -> tuple[Any, ...]:
    return history.decided(POLICY, *commands)


def test_an_overpriced_job_is_rejected_by_price_where_cheaper_demand_fills_the_pool() -> None:
    (rejected,) = said(busy(CHEAP_FILL_THE_POOL), overpriced())
    assert isinstance(rejected, events.JobRejected)
    assert rejected.reason == "price"
    assert "fills the pool with jobs of up to 400" in rejected.explanation
    assert isinstance(rejected.infeasibility_certificate, Overpriced)
    from_s, until_s = (
        rejected.infeasibility_certificate.crowded_from_s,
        rejected.infeasibility_certificate.crowded_until_s,
    )
    assert from_s is not None
    assert until_s is not None
    assert NOW_S <= from_s < until_s
    assert f"mostly jobs due in {from_s - NOW_S:.0f} to {until_s - NOW_S:.0f} s" in rejected.explanation
    assert (
        rejected.infeasibility_certificate.gpu_seconds
        == pytest.approx(rejected.least_gpu_seconds)
        == pytest.approx(3600.0)
    )
    assert (
        rejected.infeasibility_certificate.gpu_seconds * rejected.infeasibility_certificate.price
        > rejected.infeasibility_certificate.value
    )
    assert (
        rejected.infeasibility_certificate.gpu_seconds * rejected.infeasibility_certificate.price_limit
        <= rejected.infeasibility_certificate.value * (1 + 1e-9)
    )
    assert rejected.deadline_s == NOW_S + 2000.0


def test_first_come_admits_an_overpriced_job_and_selective_admission_admits_a_cheap_one() -> None:
    (taken,) = said(busy(CHEAP_FILL_THE_POOL, "first-come"), overpriced())
    assert isinstance(taken, events.JobAdmitted)
    assert taken.least_gpu_seconds == pytest.approx(3600.0)
    (cheap,) = said(busy(CHEAP_FILL_THE_POOL), overpriced(max_iterations=300))
    assert isinstance(cheap, events.JobAdmitted)


def test_with_little_demand_no_job_is_overpriced() -> None:
    for demand in (Demand(), SELDOM):
        (taken,) = said(busy(demand), overpriced())
        assert isinstance(taken, events.JobAdmitted)


def test_an_infeasible_deadline_is_rejected_for_its_deadline_and_not_by_its_price() -> None:
    (rejected,) = said(busy(CHEAP_FILL_THE_POOL), overpriced(deadline_s=NOW_S + 900.0))
    assert isinstance(rejected, events.JobRejected)
    assert rejected.reason == "deadline"


@pytest.mark.parametrize("demand", [Demand(), SELDOM], ids=["none", "seldom"])
@pytest.mark.parametrize("num_gpus", [1, 8])
def test_an_idle_pool_admits_every_job_that_fits(demand: Demand, num_gpus: int) -> None:
    history = pool(num_gpus)
    assert history.state.config.admission == "selective"
    history = History(replace(history.state, demand=demand))
    whole = submit("whole", max_iterations=100 * num_gpus, deadline_s=NOW_S + 103.0)
    assert isinstance(said(history, whole)[0], events.JobAdmitted)


def test_a_job_that_leaves_the_pool_nearly_idle_is_never_overpriced() -> None:
    history = History(replace(pool(NUM_GPUS).state, demand=CHEAP_FILL_THE_POOL))
    tenth = submit("tenth", max_iterations=790, deadline_s=NOW_S + 1000.0)
    assert isinstance(said(history, tenth)[0], events.JobAdmitted)


def offers_of(history: History, command: SubmitJob) -> events.JobRejected:
    (rejected,) = said(history, command)
    assert isinstance(rejected, events.JobRejected)
    return rejected


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (overpriced(), "price"),
        (overpriced(deadline_s=NOW_S + 900.0), "deadline"),
        (overpriced(deadline_s=NOW_S + 500.0, max_iterations=20_000), "deadline"),
        (overpriced(model_name="linear", max_iterations=7_000), "price"),
    ],
    ids=["overpriced", "late", "far-too-late", "other-model"],
)
@pytest.mark.parametrize("slack_s", [0.0, 1.3])
def test_every_offer_is_promised_if_it_is_taken_at_once(command: SubmitJob, reason: str, slack_s: float) -> None:
    history = busy(CHEAP_FILL_THE_POOL)
    config = replace(history.state.config, deadline_slack_s=slack_s)
    history.then(events.PoolConfigured(config=config, at_s=NOW_S))
    rejected = offers_of(history, command)
    assert rejected.reason == reason
    assert len(set(rejected.offers)) >= 3
    asked_for = command.spec.deadline_s
    assert asked_for is not None
    for offer in rejected.offers:
        assert offer.deadline_s >= asked_for
        spec = replace(
            command.spec,
            deadline_s=offer.deadline_s,
            max_iterations=offer.max_iterations,
            global_batch_size=offer.global_batch_size,
        )
        assert spec != command.spec
        (taken,) = said(History(history.state), replace(command, job_id="offer", spec=spec))
        assert isinstance(taken, events.JobAdmitted), (offer, taken)
    if rejected.earliest_deadline_s is not None:
        assert rejected.earliest_deadline_s == rejected.offers[0].deadline_s


def test_an_offer_with_another_batch_size_trains_on_as_many_samples() -> None:
    """Of those whose speed is known; sharded jobs have speeds of their own."""
    for sharded, expected in ((False, (128, 1440)), (True, (256, 720))):
        rejected = offers_of(busy(CHEAP_FILL_THE_POOL), overpriced(deadline_s=NOW_S + 900.0, shard_optimizer=sharded))
        others = [offer for offer in rejected.offers if offer.global_batch_size != 64]
        assert [(offer.global_batch_size, offer.max_iterations) for offer in others] == [expected]


@pytest.mark.parametrize("num_asked", range(FEWEST_SUBMISSIONS - 3, FEWEST_SUBMISSIONS + 1))
@pytest.mark.parametrize("window_s", [5.0, 900.0, 2000.0])
def test_quotes_and_offers_hold_where_one_submission_more_is_enough_to_set_a_price(
    num_asked: int, window_s: float
) -> None:
    history = busy(asked(*[8000.0] * num_asked, gap_s=60.0))
    command = overpriced(deadline_s=NOW_S + window_s, max_iterations=8000)
    question = QuoteDeadline(tenant=command.tenant, spec=replace(command.spec, deadline_s=None))
    quoted_s = quote(history.state, question, NOW_S).earliest_deadline_s
    assert quoted_s is not None
    spec = replace(command.spec, deadline_s=quoted_s)
    assert isinstance(said(History(history.state), replace(command, spec=spec))[0], events.JobAdmitted)
    spec = replace(command.spec, deadline_s=quoted_s - 1.0)
    assert isinstance(said(History(history.state), replace(command, spec=spec))[0], events.JobRejected)
    for offer in offers_of(history, command).offers:
        spec = replace(command.spec, deadline_s=offer.deadline_s, max_iterations=offer.max_iterations)
        spec = replace(spec, global_batch_size=offer.global_batch_size)
        (taken,) = said(History(history.state), replace(command, job_id="offer", spec=spec))
        assert isinstance(taken, events.JobAdmitted), (offer, taken)


def test_simultaneous_submissions_are_judged_smallest_first_or_in_order() -> None:
    large = submit("large", max_iterations=90, deadline_s=NOW_S + 110.0)
    small = submit("small", max_iterations=20, deadline_s=NOW_S + 110.0)
    free = submit("free", job_class=JobClass.BEST_EFFORT, deadline_s=None)
    selective = said(pool(1), large, small, free)
    assert [(event.job_id, type(event)) for event in selective] == [
        ("free", events.JobAdmitted),
        ("small", events.JobAdmitted),
        ("large", events.JobRejected),
    ]
    in_order = said(pool(1, admission="first-come"), large, small, free)
    assert [(event.job_id, type(event)) for event in in_order] == [
        ("large", events.JobAdmitted),
        ("small", events.JobRejected),
        ("free", events.JobAdmitted),
    ]


def test_every_decision_on_a_deadline_counts_as_demand_and_no_other() -> None:
    history = pool(1, admission="first-come")
    commands = [
        submit("kept", deadline_s=NOW_S + 110.0),
        submit("refused", max_iterations=50, deadline_s=NOW_S + 110.0),
        submit("hopeless", max_iterations=500, deadline_s=NOW_S + 110.0),
        submit("free", job_class=JobClass.BEST_EFFORT, deadline_s=None),
        submit("unknown", model_name="new"),
    ]
    said(history, *commands)
    assert history.state.demand.newest == (NOW_S, 100.0, 110.0, NOW_S, 50.0, 110.0)
    assert history.state.demand.since_s == NOW_S
    assert LINEAR[1] == 1.0


def test_a_job_rejected_by_price_is_admitted_when_demand_has_faded() -> None:
    long_ago = replace(CHEAP_FILL_THE_POOL, newest=_earlier(CHEAP_FILL_THE_POOL.newest, 3 * 3600.0))
    (taken,) = said(busy(long_ago), overpriced())
    assert isinstance(taken, events.JobAdmitted)


def _earlier(numbers: tuple[float, ...], by_s: float) -> tuple[float, ...]:
    return tuple(number - by_s if index % 3 == 0 else number for index, number in enumerate(numbers))


@pytest.mark.parametrize("fraction_s", [0.0, 0.37, 1e-7])
def test_the_search_for_an_affordable_deadline_ends_at_any_fraction_of_a_second(
    fraction_s: float,
) -> None:
    session = AdmissionSession.start(busy(CHEAP_FILL_THE_POOL).state, NOW_S + fraction_s).with_pricing()
    curve = ScalingCurve(tuple(CONCAVE), tuple(CONCAVE.values()))
    job = SchedulableJob(job_id="job", curve=curve, remaining_iterations=2880.0)
    first_s = session.first_affordable_s(job, NOW_S + 2000.0, 1.0)
    assert first_s is not None
    assert not session.is_overpriced(replace(job, deadline_s=first_s))
    assert session.is_overpriced(replace(job, deadline_s=first_s - 1.0))


@pytest.mark.parametrize("demand", [CHEAP_FILL_THE_POOL, SELDOM, RISING], ids=["full", "seldom", "rising"])
def test_more_time_or_less_work_never_turns_an_admission_into_a_rejection(demand: Demand) -> None:
    history, now_s = busy(demand), NOW_S
    windows_s = [50.0 * 1.4**step for step in range(18)]
    iterations = [round(100 * 1.5**step) for step in range(12)]

    def is_promised(max_iterations: int, window_s: float) -> bool:
        command = overpriced(max_iterations=max_iterations, deadline_s=now_s + window_s)
        return isinstance(said(History(history.state), command)[0], events.JobAdmitted)

    promised = [[is_promised(count, window_s) for window_s in windows_s] for count in iterations]
    assert all(by_window == sorted(by_window) for by_window in promised)
    assert all(list(by_work) == sorted(by_work, reverse=True) for by_work in zip(*promised, strict=True))
    assert {True, False} == {answer for by_window in promised for answer in by_window}


def test_jobs_of_almost_one_size_are_not_overpriced_for_one_another() -> None:
    """Each displaces hardly more than one of the others, however many come."""
    history, least, window_s = pool(NUM_GPUS), 600, 3_600.0
    for number in range(40):
        command = submit(f"j{number:02}", deadline_s=NOW_S + window_s, max_iterations=least + number)
        history.decided(POLICY, command, now_s=NOW_S + 0.1 * number)
    jobs = [history.state.job(f"j{number:02}") for number in range(40)]
    rejected = [job.rejection for job in jobs if job is not None and job.rejection]
    assert jobs[0] is not None
    assert not jobs[0].rejection
    assert "price" not in rejected


@pytest.mark.parametrize("num_before", range(4, 12))
def test_offers_to_a_job_that_waited_for_its_profile_are_kept_if_they_are_taken_at_once(num_before: int) -> None:
    """The rejection itself is a submission more for the price of the next one."""
    history = busy(asked(*[300.0, 6_000.0, 40.0] * 4, gap_s=60.0))
    newest = history.state.demand.newest[: 3 * num_before]
    history = History(replace(history.state, demand=Demand(since_s=newest[0], newest=newest)))
    wanted = submit("waits", model_name="concave", max_iterations=9_000, deadline_s=NOW_S + 1_500.0)
    waits = {"job_id": "waits", "tenant": "lab", "spec": wanted.spec, "deadline_s": wanted.spec.deadline_s}
    history.then(events.ProfileRequested(at_s=NOW_S, **waits))
    (rejected,) = said(history)
    assert isinstance(rejected, events.JobRejected)
    assert rejected.offers
    for offer in rejected.offers:
        changes = {"deadline_s": offer.deadline_s, "max_iterations": offer.max_iterations}
        spec = replace(wanted.spec, global_batch_size=offer.global_batch_size, **changes)
        (taken,) = said(History(history.state), replace(wanted, job_id="takes-it", spec=spec))
        assert isinstance(taken, events.JobAdmitted)


IN_VAIN = {"deadline_s": NOW_S + 3600.0, "max_iterations": 5 * 3600}
"""More than the four free GPUs can do until then, and less than eight can."""


@pytest.mark.parametrize(("quota", "num_counted"), [(None, 30), (TenantQuota(max_jobs_per_day=5), 4)])
def test_a_flood_of_rejected_jobs_moves_the_price_as_far_as_the_quota_allows(
    quota: TenantQuota | None, num_counted: int
) -> None:
    history = busy(Demand())
    quotas = {"lab": quota} if quota else {}  # the tenant has one promise already
    history.then(events.PoolConfigured(config=replace(history.state.config, quotas=quotas), at_s=NOW_S))
    for number in range(30):
        (answer,) = said(history, submit(f"in-vain-{number}", **IN_VAIN))
        assert isinstance(answer, events.JobRejected)
        history.then(answer)
    assert len(history.state.demand.newest) // 3 == num_counted
    assert [used.num_jobs for used in history.state.rejected_demand.get("lab", ())] == ([num_counted] if quota else [])


def test_submissions_beyond_a_quota_do_not_move_the_price_of_their_decision() -> None:
    def priced(*others: SubmitJob) -> Any:
        history = busy(CHEAP_FILL_THE_POOL)
        used_up = {"lab": TenantQuota(max_jobs_per_day=1)}
        history.then(events.PoolConfigured(config=replace(history.state.config, quotas=used_up), at_s=NOW_S))
        *flood, answer = said(history, *others, overpriced(tenant="other"))
        assert {other.reason for other in flood} <= {"quota"}
        return answer.infeasibility_certificate

    flood = [submit(f"small-{number}", max_iterations=40, deadline_s=NOW_S + 600.0) for number in range(50)]
    assert priced(*flood) == priced()
