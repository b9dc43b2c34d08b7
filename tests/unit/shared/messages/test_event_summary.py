"""Events of any size as one line."""

from elasticflow.shared.messages import events
from elasticflow.shared.messages.event_summary import summary
from testbed.histories import NOW_S


def test_of_many_schedules_a_few_are_shown_and_the_rest_is_counted() -> None:
    schedule = (NOW_S, NOW_S + 60.0, 2.0, NOW_S + 60.0, NOW_S + 70.0, 1.0)
    names = [f"job-{number}" for number in range(1_000)]
    decided = events.AllocationDecided(
        num_gpus_by_job=dict.fromkeys(names, 1),
        valid_until_s=None,
        planned=dict.fromkeys(names, schedule),
        at_s=NOW_S,
    )
    shown = summary(decided)
    assert shown["planned"]["job-0"] == ["2 GPUs for 60.0 s", "1 GPU for 10.0 s"]
    assert shown["planned"]["..."] == "968 more"
    assert shown["num_gpus_by_job"]["..."] == "968 more"
    assert len(shown["planned"]) == len(shown["num_gpus_by_job"]) == 33
