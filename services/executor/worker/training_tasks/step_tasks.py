"""Which tasks of one step are under way, which are done, and which to hand out a second time. Pure.

A task is one virtual node. The load hands out each once, and again after a preemption. The task of a slow or stuck
runner would delay the whole step, so an idle runner gets a duplicate of it. The first result of a virtual node counts.
"""
# pyright: strict


class StepTasks:
    """The tasks of one step. count: its virtual nodes. now_s: when they become due."""

    def __init__(self, count: int, now_s: float) -> None:
        self._due_s = now_s
        self._open = set(range(count))  # without a result
        self._repeated = set[int]()
        self._began_s: dict[int, list[float]] = {}  # of the executions under way, by virtual node

    @property
    def is_done(self) -> bool:
        return not self._open

    def begin(self, virtual_node: int, now_s: float) -> bool:
        """A runner has the task. Returns whether its result is still wanted."""
        if virtual_node not in self._open:
            return False
        self._began_s.setdefault(virtual_node, []).append(now_s)
        return True

    def abandon(self, virtual_node: int) -> None:
        """A runner that had begun it is gone; the load hands the task out again."""
        executions = self._began_s[virtual_node]
        executions.pop()
        if not executions:
            del self._began_s[virtual_node]

    def finish(self, virtual_node: int) -> bool:
        """A runner that had begun it has a result. Returns whether it is the first one, which counts."""
        self.abandon(virtual_node)
        is_first = virtual_node in self._open
        self._open.discard(virtual_node)
        return is_first

    def duplicates(self, *, num_idle: int, least_s: float, now_s: float) -> tuple[int, ...]:
        """The tasks to hand out a second time now, the longest under way first; each at most once.

        num_idle: runners that wait although tasks are missing. A task that none has begun counts from the beginning of
        the step: it is with a runner that is stuck or gone. least_s: a task is duplicated only after so many seconds.
        """
        since_s = {v: self._began_s.get(v, [self._due_s])[0] for v in self._open - self._repeated}
        late = [v for v in since_s if since_s[v] <= now_s - least_s]
        chosen = sorted(late, key=lambda v: (since_s[v], v))[:num_idle]
        self._repeated.update(chosen)
        return tuple(chosen)
