"""GPUs that promises lend to a profiling run: every promise holds while they are lent, and after it."""

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.scheduling.admission.planned_pool import planned_pool, profiling_loans
from testbed.histories import NOW_S, History, pool, submit
from tests.support.worker_events import throughput

COST_S, NUM_GPUS = 2.0, 8
ASKED_S = NOW_S + 3.0
PROMISES = st.lists(st.tuples(st.integers(40, 300), st.floats(0.0, 40.0)), min_size=1, max_size=6)


def planned(history: History, at_s: float) -> None:
    """All decisions at this instant. Each new generation trains once its start is over."""
    for policy in (ADMISSION, ALLOCATOR, PLACEMENT):
        history.decided(policy, now_s=at_s)
    for job in list(history.state.live_jobs.values()):
        if job.gpus and not job.training and job.promised:
            history.started(job.job_id, at_s=at_s + COST_S)


def full_of(promises: list[tuple[int, float]]) -> History:
    """Jobs of so many iterations, which have what all of them need on all GPUs and so many seconds more."""
    history, needed_s = pool(NUM_GPUS), 0.0
    for number, (iterations, slack_s) in enumerate(promises):
        needed_s += iterations / NUM_GPUS + COST_S
        command = submit(f"p{number}", max_iterations=iterations, deadline_s=NOW_S + needed_s + slack_s)
        history.decided(ADMISSION, command)
    planned(history, NOW_S)
    return history


def late_jobs(history: History, at_s: float) -> set[str]:
    loans = profiling_loans(history.state, at_s)
    return set(planned_pool(history.state, at_s, loans=loans).plan.late_jobs)


@given(promises=PROMISES, takes_s=st.floats(1.0, 9.0))
def test_no_promise_is_late_during_a_loan_nor_after_it(promises: list[tuple[int, float]], takes_s: float) -> None:
    """takes_s: of the measurement on each number of GPUs, from less than a loan to more."""
    history, at_s = full_of(promises), ASKED_S
    history.decided(ADMISSION, submit("u", model_name="u", deadline_s=NOW_S + 9_000.0), now_s=at_s)
    late = late_jobs(history, at_s)
    for _ in range(8):
        planned(history, at_s)
        assert late_jobs(history, at_s) <= late
        assert sum(history.state.num_gpus_by_job.values()) <= NUM_GPUS
        job = history.state.live_jobs["u"]
        if not profiling_loans(history.state, at_s):
            break
        assert not late, "late jobs lend nothing"
        ends_s = min(history.state.lent_until_s["u"], job.placed_at_s + takes_s)
        if ends_s == job.placed_at_s + takes_s:
            history.then(throughput(job, float(job.num_gpus), ends_s))
        at_s = ends_s
    assert late_jobs(history, at_s) <= late
