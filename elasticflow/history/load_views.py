"""Padding loads of a folded pool as rows of plain values, for tables and JSON. Pure."""

from dataclasses import dataclass

from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.state.idle_windows import CARRIES_A_JOB
from elasticflow.shared.state.load import Load, LoadPhase
from elasticflow.shared.state.pool import PoolState


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadView:
    """One padding load in numbers. Times are seconds since 1970.

    useful_share: the part of idle windows that admission predicted; None: there were none.
    num_tasks: None until the load is sealed. explanation: why it was cancelled.
    starves: it is live, and a task takes longer than any idle window of the pool so far, of which longest_window_s is
    the longest. None: there was none.
    """

    load_id: str
    tenant: str
    phase: str  # open, sealed, finished or cancelled
    task_function: str
    task_s: float
    overhead_s: float
    useful_share: float | None
    num_results: int
    num_tasks: int | None
    opened_at_s: float
    ended_at_s: float | None
    explanation: str
    starves: bool
    longest_window_s: float | None

    @property
    def progress(self) -> float:
        """From 0 to 1; 0 while the number of tasks is unknown."""
        if self.phase == LoadPhase.FINISHED:
            return 1.0  # also without tasks
        return self.num_results / self.num_tasks if self.num_tasks else 0.0

    @property
    def tasks_in_words(self) -> str:
        """Results of tasks, as "1,200/5,000"; "0/?" before the load is sealed."""
        return f"{self.num_results:,}/{'?' if self.num_tasks is None else format(self.num_tasks, ',')}"


def load_views(state: PoolState, now_s: float, *, ended: bool = False) -> tuple[LoadView, ...]:
    """Loads in the order of their openings. ended: include loads that have ended."""
    loads = (load for load in state.loads.values() if ended or load.live)
    longest_s = max(state.idle_windows_at(now_s, least_open_s=1e-6), default=None)
    in_order = sorted(loads, key=lambda load: (load.opened_at_s, load.load_id))
    return tuple(_load_view(load, longest_s, has_windows=bool(state.idle_windows.newest_s)) for load in in_order)


def _load_view(load: Load, longest_window_s: float | None, *, has_windows: bool) -> LoadView:
    spec = load.spec
    least_window_s = spec.start_stop_s + spec.task_s + spec.overhead_s
    return LoadView(
        load_id=load.load_id,
        tenant=load.tenant,
        phase=load.phase.value,
        task_function=load.spec.task_function,
        task_s=load.spec.task_s,
        overhead_s=load.spec.overhead_s,
        useful_share=load.useful_share,
        num_results=load.num_results,
        num_tasks=load.num_tasks,
        opened_at_s=load.opened_at_s,
        ended_at_s=load.ended_at_s,
        explanation=load.explanation,
        starves=load.live and has_windows and longest_window_s is not None and longest_window_s < least_window_s,
        longest_window_s=longest_window_s,
    )


def padding_gpus(state: PoolState) -> frozenset[GpuId]:
    """The idle GPUs that padding loads may use; none without a live load."""
    if not any(load.live for load in state.loads.values()):
        return frozenset()
    return frozenset(
        GpuId(node_id, gpu_index)
        for node_id, since_s_G in state.idle_since_s.items()
        for gpu_index, since_s in enumerate(since_s_G)
        if since_s < CARRIES_A_JOB
    )
