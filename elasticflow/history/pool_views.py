"""Jobs, nodes and padding loads of a folded pool as rows of plain values, for tables and JSON. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticflow.shared.messages.events.nodes import GpuReport
from elasticflow.shared.messages.gpus import ANY_NUMBER, GpuId, GpuLimits
from elasticflow.shared.messages.job_spec import MetricCondition, Scalar
from elasticflow.shared.messages.rejection import Offer
from elasticflow.shared.state.finish_time import expected_finish_s, is_silent, margin_s, speed_now
from elasticflow.shared.state.gpu_types import num_added_by_type, type_name
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.load import Load, LoadPhase
from elasticflow.shared.state.nodes import slower_nodes
from elasticflow.shared.state.pool import CARRIES_A_JOB, PoolState, slow_until_s
from elasticflow.shared.state.promise import promise_of

# --- Padding loads of a folded pool as rows of plain values, for tables and JSON -----------------------


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
        """The progress from 0 to 1; 0 while the number of tasks is unknown."""
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


# --- pool views ----------------------------------------------------------------------------------------

LOST_LATELY_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job in numbers. Times are seconds since 1970; margin_s is deadline less (expected) finish."""

    job_id: str
    tenant: str
    job_class: str
    training_function: str
    activity: str  # undecided, profiling, waiting, starting, running, recovering, or how it ended
    start_phase: str  # what its code does in a start that takes some seconds, such as "in init_model()"; else ""
    num_gpus: int
    gpu_range: str  # the numbers on which it may run now, as "2..8"; "..": any
    bound: GpuLimits | None  # set by an operator
    gpus: tuple[str, ...]  # "node:index", in rank order
    gpu_type: str  # of its share; "": undecided, or the pool has one type
    num_added_gpus_by_type: Mapping[str, int]  # of other types, among its GPUs
    generation: int
    iteration: int
    max_iterations: int  # 0: of a profile only
    iterations_per_s: float | None  # None while it is silent
    silent_s: float | None  # since its last report, once further ones are overdue
    decided_at_s: float
    deadline_s: float | None
    expected_finish_s: float | None
    margin_s: float | None
    ended_at_s: float | None
    promise: str  # none, promised, at risk, kept, broken, failed or cancelled
    restarts: int
    metrics: Mapping[str, float]
    explanation: str
    last_lines: str  # of a failed worker's log
    sweep: str  # "": of none
    swept: Mapping[str, Scalar]  # its values there, by hyperparameter
    goals: tuple[MetricCondition, ...]  # that end it early
    earliest_deadline_s: float | None
    offers: tuple[Offer, ...]  # with a rejection
    model_iteration: int | None = None  # of the model that `eflow fetch` gets; None: no model is stored
    artifact_bytes: int = 0  # stored for `eflow fetch`

    @property
    def progress(self) -> float:
        """The progress from 0 to 1."""
        return self.iteration / self.max_iterations if self.max_iterations else 0.0

    @property
    def activity_in_words(self) -> str:
        """Such as "running", or "starting, in init_model()"."""
        return ", ".join(filter(None, (self.activity, self.start_phase)))

    def __str__(self) -> str:
        metrics = "".join(f"  {name} {value:.4g}" for name, value in self.metrics.items())
        said = f": {self.explanation}" if self.explanation else ""
        return (
            f"{self.job_id} {self.activity_in_words}  {self.iteration}/{self.max_iterations} iterations{metrics}{said}"
        )

    def _repr_html_(self) -> str:
        """The row of `eflow jobs` for a notebook, as of its end or decision, and what is said of a failure."""
        from rich.text import Text

        from elasticflow.history.tables import (
            as_html,
            jobs_table,  # it needs this module
        )

        shown = as_html(jobs_table((self,), self.ended_at_s or self.decided_at_s, all_columns=True))
        said = "\n".join(filter(None, (self.explanation, self.last_lines)))
        return shown + (as_html(Text(said)) if said else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node. jobs[i]: the job that holds GPU i, "" if it is free. slow_until_s: by slow GPU, when it no longer
    counts as slow. num_padding_gpus: idle GPUs that padding loads may use now; 0 without a live load. gpu_type: "" if
    unnamed. gpu_memory_bytes: of each GPU; 0 if unknown. isolation, unenforced: as in `NodeJoined`. slower_than_type:
    by which part it is slower than other nodes of its type; 0.0 if it is not, or if too few jobs show it."""

    node_id: str
    alive: bool
    device: str
    num_gpus: int
    jobs: tuple[str, ...]
    since_s: float
    left: bool = False
    slow_until_s: Mapping[int, float] = field(default_factory=dict[int, float])
    failing: Mapping[int, str] = field(default_factory=dict[int, str])  # of these, why their driver asks for a reset
    gpus: tuple[GpuReport, ...] = ()  # as their driver says now, if this reader may ask for it
    num_padding_gpus: int = 0
    gpu_type: str = ""
    gpu_memory_bytes: int = 0
    isolation: str = ""
    unenforced: tuple[str, ...] = ()
    slower_than_type: float = 0.0
    rack: str = ""  # "": its executor named none
    num_sockets: int = 1
    until_s: float | None = None  # its announced end
    draining: bool = False  # its jobs move, because its end is near
    awaited: bool = False  # it may have ended with others: it takes no job until it joins again

    @property
    def num_free_gpus(self) -> int:
        return self.jobs.count("")


def job_view(
    job: Job, now_s: float, bound: GpuLimits | None = None, gpu_type: str = "", added: Mapping[str, int] | None = None
) -> JobView:
    spec = job.spec
    return JobView(
        job_id=job.job_id,
        tenant=job.tenant,
        job_class=spec.job_class.value if spec else "",
        training_function=spec.training_function if spec else "",
        activity=activity(job),
        start_phase=job.start_phases[-1] if job.live and job.start_phases and job.training_generation is None else "",
        num_gpus=len(job.gpus),
        gpu_range=str(spec.gpu_range if spec else ANY_NUMBER),
        bound=bound,
        gpus=tuple(f"{gpu.node_id}:{gpu.gpu_index}" for gpu in job.gpus),
        gpu_type=gpu_type,
        num_added_gpus_by_type=added or {},
        generation=job.generation,
        iteration=job.iteration,
        max_iterations=spec.max_iterations if spec and not job.profile_only else 0,
        iterations_per_s=speed_now(job, now_s) if job.live else job.iterations_per_s,
        silent_s=now_s - job.progressed_at_s if job.live and is_silent(job, now_s) else None,
        decided_at_s=job.decided_at_s,
        deadline_s=job.deadline_s,
        expected_finish_s=expected_finish_s(job, now_s),
        margin_s=margin_s(job, now_s),
        ended_at_s=job.ended_at_s,
        promise=promise_of(job, now_s).value,
        restarts=job.restarts,
        metrics=dict(job.metrics),
        explanation=job.explanation,
        last_lines=job.last_lines,
        sweep=spec.sweep if spec else "",
        swept=dict(spec.swept) if spec else {},
        goals=spec.metric_conditions if spec else (),
        earliest_deadline_s=job.earliest_deadline_s,
        offers=job.offers,
        model_iteration=job.artifacts.model_iteration,
        artifact_bytes=job.artifacts.num_bytes,
    )


def activity(job: Job) -> str:
    """What the job does now, as one word."""
    if job.phase is Phase.PROFILING and not job.gpus:
        return "undecided"
    if job.phase is not Phase.ADMITTED:
        return job.phase.value
    if job.broken or job.shrinks_to_survivors:
        return "recovering"
    if not job.gpus:
        return "waiting"
    return "starting" if job.training_generation is None else "running"


def job_views(state: PoolState, now_s: float, *, ended: bool = False) -> tuple[JobView, ...]:
    """Jobs in the order of their decisions. ended: include ended jobs."""
    jobs = [*state.live_jobs.values(), *(state.ended_jobs.values() if ended else ())]
    return tuple(
        job_view(job, now_s, state.gpu_limits.get(job.job_id), gpu_type_of(state, job), num_added_by_type(state, job))
        for job in sorted(jobs, key=lambda job: (job.decided_at_s, job.job_id))
    )


def gpu_type_of(state: PoolState, job: Job) -> str:
    """The type of the GPUs on which the job was admitted, where the pool has several types; else ""."""
    is_decided = job.phase not in (Phase.PROFILING, Phase.REJECTED) and len(state.gpu_types) > 1
    return type_name(state, job.spec.gpu_type) if is_decided and job.spec is not None else ""


def node_views(state: PoolState) -> tuple[NodeView, ...]:
    """All nodes, by node id."""
    num_padding_gpus = Counter(gpu.node_id for gpu in padding_gpus(state))
    slower = slower_nodes(state)
    holder = {gpu: job.job_id for job in state.live_jobs.values() for gpu in (*job.gpus, *job.share_gpus)}
    return tuple(
        NodeView(
            node_id=node.node_id,
            alive=node.alive,
            device=node.device,
            num_gpus=node.num_gpus,
            jobs=tuple(holder.get(GpuId(node.node_id, index), "") for index in range(node.num_gpus)),
            since_s=node.since_s,
            left=node.left,
            slow_until_s={slow.gpu_index: slow_until_s(state, slow) for slow in node.slow_gpus},
            failing={slow.gpu_index: slow.reason for slow in node.slow_gpus if slow.reason},
            num_padding_gpus=num_padding_gpus[node.node_id],
            gpu_type=node.gpu_type,
            gpu_memory_bytes=node.gpu_memory_bytes,
            isolation=node.isolation,
            unenforced=node.unenforced,
            slower_than_type=slower.get(node.node_id, 0.0),
            rack=node.rack,
            num_sockets=node.sockets,
            until_s=node.until_s,
            draining=node.draining,
            awaited=node.awaited,
        )
        for _, node in sorted(state.nodes.items())
    )


def present_nodes(views: tuple[NodeView, ...], now_s: float) -> tuple[NodeView, ...]:
    """The live nodes, and those lost in the last hour; not those that left."""
    return tuple(view for view in views if view.alive or (not view.left and now_s - view.since_s <= LOST_LATELY_S))
