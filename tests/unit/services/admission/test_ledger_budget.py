"""What a tenant that floods admission adds to the ledger."""

from dataclasses import replace

from elasticflow.services.admission.policy import POLICY
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.commands import CancelJob, SubmitJob
from elasticflow.shared.messages.limits import MAX_TEXT_LENGTH
from testbed.histories import LINEAR, NOW_S, submit
from tests.support.one_pool import POOL, OnePool

NUM_COMMANDS, NUM_BYTES = 504, 95_000  # an attack that made 94 MB of the ledger
BEFORE_BYTES = 94_000_000


def num_ledger_bytes(pool: OnePool) -> int:
    return sum(len(stored.data) for stored in pool.broker.ledger(POOL).messages.values())


def num_added_by(*commands: SubmitJob | CancelJob) -> tuple[OnePool, int]:
    """The pool after these commands, and the bytes that its ledger has gained."""
    pool = OnePool()
    pool.configure(curves={"linear/b64": LINEAR})
    pool.start(pool.bus(), POLICY)
    pool.run_for(1.0)
    before = num_ledger_bytes(pool)
    for number, command in enumerate(commands):
        pool.send(command)
        if number % 100 == 99:
            pool.run_for(5.0)
    pool.run_for(60.0)
    pool.loop.finish()
    assert not pool.num_unacknowledged
    return pool, num_ledger_bytes(pool) - before


def rejected(number: int) -> SubmitJob:
    """Due in the past, and 95 kB long."""
    late = submit(f"job-{number}", deadline_s=NOW_S - 1.0, hyperparameters={f"h{i}": "x" * 256 for i in range(250)})
    environment = {"V": "x" * 14_000}
    missing = NUM_BYTES - len(codec.encode(late, id="", recorded_at_s=0.0)) - len(environment["V"])
    return replace(late, spec=replace(late.spec, environment=environment, description="x" * missing))


def test_large_submissions_that_are_rejected_add_a_tenth_of_their_bytes_at_most() -> None:
    pool, num_added = num_added_by(*map(rejected, range(NUM_COMMANDS)))
    assert {name for name, _ in pool.decided} == {"PoolConfigured", "JobRejected"}
    assert 2 * NUM_BYTES < num_added <= BEFORE_BYTES / 10


def test_cancellations_with_long_reasons_add_no_more() -> None:
    """Of jobs that do not exist: only what ends something is taken beyond the budget."""
    reason = "\u2603" * MAX_TEXT_LENGTH
    _, num_added = num_added_by(
        *(CancelJob(job_id=f"job-{number}", tenant="lab", reason=reason) for number in range(NUM_COMMANDS))
    )
    assert len(reason.encode()) < num_added <= BEFORE_BYTES / 10
