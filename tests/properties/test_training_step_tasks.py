"""Tasks of one training step: every virtual node counts once, whatever runners do."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from elasticflow.services.executor.worker.training_tasks.manager import StepTasks

NUM_TASKS = 5


class Runners(RuleBasedStateMachine):
    """A load that repeats abandoned tasks, and runners that begin, finish and abandon them in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = StepTasks(NUM_TASKS, 0.0)
        self.now_s = 0.0
        self.queued = list(range(NUM_TASKS))
        self.under_way: list[int] = []
        self.counted: list[int] = []
        self.duplicated: list[int] = []

    @rule(seconds=st.floats(0, 10))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def a_runner_begins(self, data: st.DataObject) -> None:
        task = self.queued.pop(data.draw(st.integers(0, len(self.queued) - 1)))
        is_wanted = self.tasks.begin(task, self.now_s)
        assert is_wanted == (task not in self.counted)
        if is_wanted:
            self.under_way.append(task)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def a_runner_finishes(self, data: st.DataObject) -> None:
        task = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        assert self.tasks.finish(task) == (task not in self.counted)
        if task not in self.counted:
            self.counted.append(task)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def a_runner_is_preempted(self, data: st.DataObject) -> None:
        task = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        self.tasks.abandon(task)
        self.queued.append(task)

    @rule(num_idle=st.integers(0, 3), least_s=st.floats(0, 10))
    def duplicates_are_due(self, num_idle: int, least_s: float) -> None:
        late = self.tasks.duplicates(num_idle=num_idle, least_s=least_s, now_s=self.now_s)
        open_tasks = set(range(NUM_TASKS)) - set(self.counted)
        assert len(late) <= num_idle
        assert set(late) <= open_tasks
        self.duplicated += late
        self.queued += late

    @invariant()
    def each_is_duplicated_at_most_once(self) -> None:
        assert len(set(self.duplicated)) == len(self.duplicated)

    @invariant()
    def it_is_done_once_each_has_counted(self) -> None:
        assert self.tasks.is_done == (sorted(self.counted) == list(range(NUM_TASKS)))

    @invariant()
    def no_task_is_lost(self) -> None:
        assert {*self.counted, *self.under_way, *self.queued} == set(range(NUM_TASKS))


TestRunners = Runners.TestCase


def test_the_task_that_is_longest_under_way_is_duplicated_first() -> None:
    tasks = StepTasks(3, 10.0)
    tasks.begin(2, 11.0)
    tasks.begin(0, 12.0)
    assert tasks.duplicates(num_idle=9, least_s=4.0, now_s=13.0) == ()
    assert tasks.duplicates(num_idle=1, least_s=1.0, now_s=13.0) == (1,), "it has not begun"
    assert tasks.duplicates(num_idle=9, least_s=2.0, now_s=13.0) == (2,)
    assert tasks.duplicates(num_idle=9, least_s=1.0, now_s=13.0) == (0,)
    assert tasks.duplicates(num_idle=9, least_s=0.0, now_s=99.0) == ()
