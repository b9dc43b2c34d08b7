"""Benchmarks run, with real services over a real NATS and little work. No time is asserted."""

from pathlib import Path

import pytest

from benchmarks.hostile import FRAMES, attack
from benchmarks.pipeline.cluster import running_cluster
from benchmarks.pipeline.epochs import measure_epochs, measure_rebuild
from benchmarks.pipeline.growth import measure_growth
from benchmarks.pipeline.latency import measure_burst, measure_latency, raw_publishes_per_s


@pytest.mark.nightly("a run of a benchmark; test_repeated_commands.py and others have the pipeline")
async def test_every_submission_of_a_small_benchmark_is_decided_and_counted() -> None:
    async with running_cluster() as cluster:
        latency = await measure_latency(cluster, rate_per_s=50.0, num_jobs=20)
        assert latency["placed"] + latency["rejected"] == latency["submissions"] == 20
        assert await raw_publishes_per_s(cluster, 20) > 0
        burst = await measure_burst(cluster, num_jobs=100, pools=("burst",))
        assert burst["admitted"] + burst["rejected"] == burst["submissions"] == 100
        shared = await measure_burst(cluster, num_jobs=100, pools=("shared",), admissions=2)
        assert shared["admitted"] + shared["rejected"] == shared["submissions"] == 100
        rebuild = await measure_rebuild(cluster, num_events=400)
        assert rebuild["jobs"] == 20
        assert rebuild["events"] == 409, "1 configuration, 8 nodes, 20 lives of 20 messages"
        epochs = await measure_epochs(cluster, num_events=400, num_epochs=2)
        assert epochs["events"] == 411, "the same, and 2 beginnings of epochs"
        assert epochs["since_the_epoch"] < 400
        assert not cluster.processes


@pytest.mark.nightly("a run of a benchmark; test_repeated_commands.py and others have the pipeline")
async def test_hostile_messages_of_each_kind_are_sent_and_end_no_process(tmp_path: Path) -> None:
    result = await attack(1_000, 120.0, 0, tmp_path)
    frames = result.sent.pop(FRAMES)
    assert len(result.sent) == 21, "19 kinds of places, and two that are attacked at the end only"
    assert sum(result.sent.values()) + sum(result.refused.values()) == 1_000
    assert frames > 0
    assert (result.same_processes, result.job_afterwards) == (True, "finished")


@pytest.mark.nightly("a run of a benchmark; test_repeated_commands.py and others have the pipeline")
def test_the_messages_of_training_jobs_are_counted_by_kind() -> None:
    growth = measure_growth(num_jobs=2, settled_s=10.0, counted_s=20.0)
    assert growth["by_kind_a_day"].keys() == {"JobProgressed"}
    assert growth["messages_a_day"] > 0
