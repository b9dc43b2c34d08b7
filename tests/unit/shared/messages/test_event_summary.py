"""Events of any size as one line; and GPUs as words, in both directions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages import events
from elasticflow.shared.messages.event_summary import gpus_in_words, gpus_of_words, summary
from elasticflow.shared.messages.gpus import GpuId
from testbed.histories import NOW_S, gpus


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


@given(st.lists(st.builds(GpuId, st.sampled_from(["a", "node-1", "x_2"]), st.integers(0, 99)), unique=True))
def test_gpus_are_read_as_they_are_written(named: list[GpuId]) -> None:
    assert set(gpus_of_words(gpus_in_words(tuple(named)))) == set(named)


def test_gpus_of_several_nodes_keep_their_order() -> None:
    assert gpus_of_words("b:2,0 a:1") == gpus("b:2", "b:0", "a:1")
    assert gpus_of_words("") == ()


@pytest.mark.parametrize("text", ["node-1", "node-1:", ":3", "node-1:-3", "node-1:3,", "node-1:x", "node-1:\u0663"])
def test_what_names_no_gpu_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write node-1:3"):
        gpus_of_words(text)
