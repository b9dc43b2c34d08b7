"""Which command the events of a decision are about."""

from elasticflow.shared.messages.commands import AmendJob, CancelJob, Command
from elasticflow.shared.messages.events import PlanDecided, QueuePosition


def decision(*commands: Command, first: int | None = 7) -> PlanDecided:
    positions = () if first is None else tuple(QueuePosition(first + number, 0.0) for number in range(len(commands)))
    return PlanDecided(
        service="admission", based_on=0, now_s=0.0, commands=commands, queue_positions=positions, events=()
    )


AMEND_A = AmendJob(job_id="a", tenant="lab", max_iterations=9)
CANCEL_A, CANCEL_B = (CancelJob(job_id=name, tenant="lab") for name in "ab")


def test_the_only_command_about_a_job_is_found() -> None:
    assert decision(AMEND_A, CANCEL_B).queue_sequences().get("b", 0) == 8
    assert decision(AMEND_A, CANCEL_B).queue_sequences().get("a", 0) == 7


def test_no_command_is_named_where_none_is_known() -> None:
    assert decision(AMEND_A).queue_sequences().get("b", 0) == 0
    assert decision(AMEND_A, CANCEL_A).queue_sequences().get("a", 0) == 0, "of an older admission, with several"
    assert decision(AMEND_A, first=None).queue_sequences().get("a", 0) == 0, "commands of no work queue"
