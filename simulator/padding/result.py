"""What a simulation of padding loads yields, for each load and for all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from elasticflow.shared.scheduling.padding import cost_model
from elasticflow.simulator.padding.loads import PaddingLoad
from elasticflow.simulator.padding.windows import IdleWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOutcome:
    """What became of one load.

    tasks_lost: tasks that a preemption interrupted; each was executed again, or waits.
    useful_s: of the tasks that are done. given_s: GPU-seconds with its runner. finished_at_s: None if tasks remain.
    """

    load: PaddingLoad
    tasks_done: int
    tasks_lost: int
    useful_s: float
    given_s: float
    finished_at_s: float | None

    @property
    def useful_share(self) -> float | None:
        """Of the time given to the load (theta), as measured; None if it got none."""
        return self.useful_s / self.given_s if self.given_s else None


@dataclass(frozen=True, kw_only=True)
class LoadsResult:
    """windows, outcomes: all of them, in the order given. jain_by_minute: see `fairness`."""

    windows: Sequence[IdleWindow]
    outcomes: Sequence[LoadOutcome]
    jain_by_minute: Mapping[int, float]

    @cached_property
    def idle_gpu_s(self) -> float:
        return sum(window.length_s for window in self.windows)

    @cached_property
    def useful_s(self) -> float:
        return sum(outcome.useful_s for outcome in self.outcomes)

    @cached_property
    def given_s(self) -> float:
        return sum(outcome.given_s for outcome in self.outcomes)

    @cached_property
    def whole_task_s(self) -> float:
        """The physical limit: useful seconds if each window ran tasks of its best load, and tasks never ran out."""
        return sum(
            max(self._whole_task_s(outcome.load, window) for outcome in self.outcomes) for window in self.windows
        )

    @property
    def finished_at_s(self) -> float | None:
        """When the last task was done; None if a load is unfinished."""
        ends_s = [outcome.finished_at_s for outcome in self.outcomes if outcome.finished_at_s is not None]
        return max(ends_s) if len(ends_s) == len(self.outcomes) else None

    def predicted_useful_share(self, load: PaddingLoad) -> float | None:
        """By the cost model, for this load alone in all windows that it may use; None if there are none."""
        usable_s = [seconds for window in self.windows if (seconds := load.usable_s(window)) > 0]
        return cost_model.useful_share(usable_s, load.cost) if usable_s else None

    def numbers(self) -> Mapping[str, object]:
        """The published numbers of all loads together, by name."""
        jain = self.jain_by_minute.values()
        return {
            "loads": len(self.outcomes),
            "windows": len(self.windows),
            "gpus": len({window.gpu for window in self.windows}),
            "tasks": sum(outcome.load.num_tasks for outcome in self.outcomes),
            "tasks_done": sum(outcome.tasks_done for outcome in self.outcomes),
            "tasks_lost": sum(outcome.tasks_lost for outcome in self.outcomes),
            "finished_at_s": self.finished_at_s,
            "idle_gpu_s": self.idle_gpu_s,
            "given_gpu_s": self.given_s,
            "useful_gpu_s": self.useful_s,
            "useful_share": self.useful_s / self.given_s if self.given_s else None,
            "useful_share_of_idle": self.useful_s / self.idle_gpu_s,
            "useful_share_of_whole_tasks": self.useful_s / self.whole_task_s if self.whole_task_s else None,
            "jain_index_mean": sum(jain) / len(jain) if jain else None,
            "jain_index_lowest": min(jain, default=None),
        }

    def load_numbers(self, outcome: LoadOutcome) -> Mapping[str, object]:
        """The published numbers of one load, by name."""
        return {
            "load_id": outcome.load.load_id,
            "tenant": outcome.load.tenant,
            "tasks": outcome.load.num_tasks,
            "tasks_done": outcome.tasks_done,
            "tasks_lost": outcome.tasks_lost,
            "finished_at_s": outcome.finished_at_s,
            "given_gpu_s": outcome.given_s,
            "useful_gpu_s": outcome.useful_s,
            "useful_share": outcome.useful_share,
            "useful_share_predicted": self.predicted_useful_share(outcome.load),
        }

    def _whole_task_s(self, load: PaddingLoad, window: IdleWindow) -> float:
        usable_s = load.usable_s(window)
        return cost_model.whole_tasks(usable_s, load.cost) * load.cost.task_s if usable_s > 0 else 0.0
