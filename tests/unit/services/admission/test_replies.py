"""What users who wait for a reply receive once a decision of admission is in the ledger."""

from collections.abc import Sequence

from elasticflow.services.admission.policy import POLICY, replies
from elasticflow.shared.messages.commands import AmendJob, CancelJob, Command, SetGpuLimits
from elasticflow.shared.messages.events import GpuLimitsSet, JobAdmitted, JobAmended, JobCancelled
from testbed.histories import NOW_S, History, pool, submit

DUE_S = NOW_S + 400.0


def answered(history: History, commands: Sequence[Command]) -> dict[type, str]:
    """The kinds of the replies to one decision, and the jobs that they are about."""
    decided = history.decided(POLICY, *commands)
    return {type(reply): reply.job_id for reply in replies(history.state, tuple(commands), decided)}


def test_a_resubmission_is_answered_beside_another_command_on_the_same_job() -> None:
    history = pool(8)
    history.decided(POLICY, submit("a", deadline_s=DUE_S))
    again = submit("a", deadline_s=DUE_S)
    amend = AmendJob(job_id="a", tenant="lab", deadline_s=DUE_S + 100.0)
    assert answered(history, [again, amend]) == {JobAdmitted: "a", JobAmended: "a"}


def test_equal_gpu_limits_are_answered_beside_an_amendment_of_the_same_job() -> None:
    history = pool(8)
    limits = SetGpuLimits(job_id="a", tenant="lab", max_gpus=2)
    history.decided(POLICY, submit("a", deadline_s=DUE_S))
    history.decided(POLICY, limits)
    amend = AmendJob(job_id="a", tenant="lab", deadline_s=DUE_S + 100.0)
    assert answered(history, [limits, amend]) == {GpuLimitsSet: "a", JobAmended: "a"}


def test_two_cancellations_at_once_get_the_one_cancellation() -> None:
    history = pool(8)
    history.decided(POLICY, submit("a", deadline_s=DUE_S))
    cancel = CancelJob(job_id="a", tenant="lab")
    assert answered(history, [cancel, cancel]) == {JobCancelled: "a"}
