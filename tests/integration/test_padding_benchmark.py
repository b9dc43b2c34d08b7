"""The measurements of padding loads run, with little work, and name their numbers. No time is asserted."""

from benchmarks.padding.runners import (
    measure_gaps,
    measure_preemption,
    measure_start,
    measure_throughput,
    running_launcher,
)
from benchmarks.padding.streams import measure_streams


async def test_every_measurement_of_runners_has_numbers() -> None:
    async with running_launcher() as runners:
        start = await measure_start(runners, num_rounds=2)
        assert min(start["start_ms"]["p50"], start["python_c_pass_ms"]["p50"]) > 0
        gaps = await measure_gaps(runners, num_bundles=3)
        assert min(gaps["within_ms"]["p50"], gaps["between_ms"]["p50"]) > 0
        throughput = await measure_throughput(runners, num_bundles=3)
        assert throughput["tasks"] == 300
        assert throughput["tasks_per_s"] > 0
        preemption = await measure_preemption(runners, num_rounds=2, num_bytes=1_000_000)
        for what in ("preempt_ms", "sigkill_and_waitpid_ms", "unused_fork_ms"):
            assert preemption[what]["max"] >= preemption[what]["p50"] > 0


async def test_the_streams_are_measured() -> None:
    measured = await measure_streams(num_messages=20, tasks_per_bundle=(1, 10))
    assert measured.keys() == {"raw", "bundles_of_1", "bundles_of_10"}
    assert all(per_s > 0 for numbers in measured.values() for per_s in numbers.values())
    tens = measured["bundles_of_10"]
    assert round(tens["pull_and_ack_tasks_per_s"] / tens["pull_and_ack_per_s"]) == 10
