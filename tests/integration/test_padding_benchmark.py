"""The measurement of the streams of padding loads runs and names its numbers; no time is asserted."""

from benchmarks.padding.streams import measure_streams


async def test_the_streams_are_measured() -> None:
    measured = await measure_streams(num_messages=20, tasks_per_bundle=(1, 10))
    assert measured.keys() == {"raw", "bundles_of_1", "bundles_of_10", "results"}
    assert all(per_s > 0 for numbers in measured.values() for per_s in numbers.values())
    tens = measured["bundles_of_10"]
    assert round(tens["pull_and_ack_tasks_per_s"] / tens["pull_and_ack_per_s"]) == 10
