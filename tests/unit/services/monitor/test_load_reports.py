"""When the monitor reports what it has counted of a padding load."""

from elasticflow.services.monitor.model import ResultsCounted
from elasticflow.services.monitor.policy import POLICY
from elasticflow.shared.messages import events
from elasticflow.shared.messages.load_spec import LoadSpec, Ranges
from testbed.histories import NOW_S, pool

OPENED = events.LoadOpened(
    load_id="a", tenant="lab", spec=LoadSpec(task_function="jobs.fold:fold", task_s=1.0), at_s=NOW_S
)


class Monitor:
    """The policy for load a, as its host runs it."""

    def __init__(self) -> None:
        self.state = POLICY.start(pool(4).then(OPENED).state)

    def then(self, event: events.LoadReport | events.LoadSealed) -> None:
        self.state = POLICY.evolve(self.state, event, self.state.pool.sequence + 1)

    def counted(self, *ranges: tuple[int, int], after_s: float) -> list[events.LoadReport]:
        """What it reports that long after the load was opened, once these tasks have results."""
        num_results = sum(last - first + 1 for first, last in ranges)
        note = ResultsCounted(load_id="a", num_results=num_results, counted=ranges, counted_to=num_results)
        self.state = POLICY.observe(self.state, note, NOW_S)
        decided = POLICY.decide(self.state, (), NOW_S + after_s)
        reports = [event for event in decided if isinstance(event, events.LoadProgressed | events.LoadFinished)]
        for report in reports:
            self.then(report)
        return reports


def progressed(num_results: int, after_s: float) -> events.LoadProgressed:
    """The first tasks have results."""
    return events.LoadProgressed(
        load_id="a",
        num_results=num_results,
        counted=((0, num_results - 1),),
        counted_to=num_results,
        at_s=NOW_S + after_s,
    )


def test_the_progress_of_a_padding_load_is_reported_now_and_then_and_its_end_once() -> None:
    monitor = Monitor()
    assert monitor.counted(after_s=1.0) == []
    assert monitor.counted((0, 2), after_s=2.0) == [progressed(3, 2.0)]
    assert monitor.counted((0, 4), after_s=3.0) == [], "the last report is too new"
    assert monitor.counted((0, 4), after_s=8.0) == [progressed(5, 8.0)]
    assert monitor.state.pool.loads["a"].counted == ((0, 4),)
    monitor.then(events.LoadSealed(load_id="a", num_tasks=6, at_s=NOW_S + 8.0))
    assert monitor.counted((0, 4), after_s=8.2) == [], "one task has no result"
    finished = events.LoadFinished(load_id="a", num_results=6, at_s=NOW_S + 8.5)
    assert monitor.counted((0, 5), after_s=8.5) == [finished]
    assert monitor.counted((0, 5), after_s=20.0) == []


def test_a_report_with_many_ranges_is_rarer() -> None:
    monitor = Monitor()
    assert len(monitor.counted(*every_second_of(1_000), after_s=10.0)) == 1
    assert monitor.counted(*every_second_of(1_001), after_s=30.0) == [], "20.02 s, at 0.02 s for each range"
    assert len(monitor.counted(*every_second_of(1_001), after_s=30.1)) == 1
    assert monitor.counted((0, 2_000), after_s=35.0) == [], "one range: 5 s"
    assert len(monitor.counted((0, 2_000), after_s=35.2)) == 1


def every_second_of(num_tasks: int) -> Ranges:
    return tuple((2 * number, 2 * number) for number in range(num_tasks))
