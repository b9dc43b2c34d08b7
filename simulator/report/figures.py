"""Figures 7 to 11 of the ElasticFlow paper: each makes the runs that it needs, draws them and lists their numbers.

Figures of one trace or cluster use the first.
"""

import io
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.simulator.bound import Bound
from elasticflow.simulator.command_inputs import interruptible
from elasticflow.simulator.trace.plots import efficiency, held_gpus
from elasticflow.simulator.trace.result import HOUR_S
from elasticflow.simulator.trace.simulated_run import Outcome, SimulatedRun, execute
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# --- run matrix ---------------------------------------------------------------------------------------
# The runs of a report: every policy on every trace and cluster, and the variants that some figures need.

BEST_EFFORT_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMatrix:
    """All combinations of workloads, clusters and policies. The others are compared with the first policy, ours."""

    workloads: tuple[Workload, ...]
    clusters: tuple[ClusterShape, ...]
    policies: tuple[str, ...]
    overhead: str = "reference"

    def run_of(self, workload: Workload, cluster: ClusterShape, policy: str) -> SimulatedRun:
        return SimulatedRun(workload=workload, cluster=cluster, policy=policy, overhead=self.overhead)

    def runs(self) -> list[SimulatedRun]:
        """All combinations, by workload, then cluster, then policy."""
        return [
            self.run_of(workload, cluster, policy)
            for workload in self.workloads
            for cluster in self.clusters
            for policy in self.policies
        ]

    def first(self, num_runs: int) -> "RunMatrix | None":
        """The largest complete part within the first `num_runs` runs; None if there is none."""
        if num_runs >= (per_trace := len(self.clusters) * len(self.policies)):
            return replace(self, workloads=self.workloads[: num_runs // per_trace])
        if num_runs >= len(self.policies):
            clusters = self.clusters[: num_runs // len(self.policies)]
            return replace(self, workloads=self.workloads[:1], clusters=clusters)
        if not num_runs:
            return None
        policies = self.policies[:num_runs]
        return replace(self, workloads=self.workloads[:1], clusters=self.clusters[:1], policies=policies)


class NotRun(Exception):
    """A figure needs a run that was not made before the interruption."""


@dataclass(slots=True, kw_only=True)
class Runner:
    """Makes each run once and keeps its outcome; a run that Ctrl-C interrupts is not kept.

    done: called after each run. over: raise NotRun instead of making another run.
    """

    workers: int = 1
    done: Callable[[Outcome], None] = lambda outcome: None
    outcomes: dict[tuple[str, ClusterShape, str], Outcome] = field(default_factory=dict)
    over: bool = False

    def __call__(self, runs: Iterable[SimulatedRun]) -> list[Outcome]:
        """Outcomes in the order of the runs, all of one overhead model; each workload has a name of its own."""
        runs = list(runs)
        missing = list({_key(run): run for run in runs if _key(run) not in self.outcomes}.values())
        if missing and self.over:
            raise NotRun
        if self.workers > 1 and len(missing) > 1:
            with ProcessPoolExecutor(self.workers, initializer=_ignore_interrupts) as pool:
                self._keep(pool.map(_run, missing))
        else:
            self._keep(map(_run, missing))
        return [self.outcomes[_key(run)] for run in runs]

    def num_done(self, runs: Iterable[SimulatedRun]) -> int:
        """Runs made before the first one that was not."""
        return sum(1 for _ in takewhile(lambda run: _key(run) in self.outcomes, runs))

    def _keep(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self.outcomes[_key(outcome.run)] = outcome
            self.done(outcome)


def _key(run: SimulatedRun) -> tuple[str, ClusterShape, str]:
    return run.workload.name, run.cluster, run.policy


def _run(run: SimulatedRun) -> Outcome:
    verification = run.verification()
    with interruptible() as interrupted:
        outcome = execute(run, run.simulation(verification), verification, interrupted)
    if interrupted():
        raise KeyboardInterrupt
    return outcome


def _ignore_interrupts() -> None:
    """Ignore interrupts in a worker process between two runs.

    Ctrl-C reaches all processes of a terminal, and the parent handles it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def mixed(workload: Workload, share: float, seed: int = BEST_EFFORT_SEED) -> Workload:
    """This share of the jobs with a deadline becomes best effort; a larger share includes the jobs of a smaller one.

    Source: ElasticFlow, section 6.5.
    """
    dated = [job for job in workload.jobs if job.deadline_s is not None]
    order = np.random.default_rng(seed).permutation(len(dated))
    chosen = {dated[position].job_id for position in order[: round(share * len(dated))]}
    return Workload.of(f"{workload.name}, {share:.0%} best effort", (_in_class(job, chosen) for job in dated))


def _in_class(job: TraceJob, best_effort: set[str]) -> TraceJob:
    if job.job_id in best_effort:
        return replace(job, job_class=JobClass.BEST_EFFORT, deadline_s=None)
    return replace(job, job_class=JobClass.SLO)


def due_after(workload: Workload, durations: float) -> Workload:
    """All jobs are of class slo, with so many durations until their deadlines.

    Source: ElasticFlow, section 6.4: efficiency is compared on schedulers that run the same jobs.
    """
    due = (
        replace(job, job_class=JobClass.SLO, deadline_s=job.submitted_at_s + durations * job.duration_s)
        for job in workload.jobs
    )
    return Workload.of(f"{workload.name}, due after {durations:g} durations", due)


# --- Canvas, colours and shapes of the figures ---------------------------------------------------------

FloatArray = NDArray[np.float64]

NUM_INTERVALS = 100
DPI = 100


def panels(count: int) -> "tuple[Figure, list[Axes]]":
    """Panels one above the other."""
    figure = Figure(figsize=(9.0, 3.6 if count == 1 else 3.0 * count), layout="constrained")
    FigureCanvasAgg(figure)
    axes_of_all = list(figure.subplots(count, 1, squeeze=False)[:, 0])
    for axes in axes_of_all:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    return figure, axes_of_all


def colours(count: int) -> list[str]:
    """Up to ten colours are easy to distinguish, up to twenty with care."""
    palette = colormaps["tab10" if count <= 10 else "tab20"].colors  # pyright: ignore[reportAttributeAccessIssue]
    return [to_hex(palette[position % len(palette)]) for position in range(count)]


def bars(axes: "Axes", groups: Sequence[str], heights: Mapping[str, Sequence[float]]) -> None:
    """heights: by series, one for each group; 0 to 1."""
    width = 0.8 / len(heights)
    for position, (series, colour) in enumerate(zip(heights, colours(len(heights)), strict=True)):
        at = np.arange(len(groups)) + (position - (len(heights) - 1) / 2) * width
        axes.bar(at, heights[series], width, label=series, color=colour)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylim(0, 1.02)


def lines_over_time(axes: "Axes", edges_s_B: FloatArray, values_by_series: Mapping[str, FloatArray]) -> None:
    """values_by_series: means over the intervals. The first series, ours, is drawn on top."""
    hours_B = (edges_s_B - edges_s_B[0]) / HOUR_S
    shades = colours(len(values_by_series))
    for position, (series, values) in enumerate(values_by_series.items()):
        width, order = (2.0, 3.0) if position == 0 else (0.9, 2.0)
        axes.stairs(
            values,
            hours_B,
            baseline=None,
            label=series,
            color=shades[position],
            linewidth=width,
            zorder=order,
        )


def legend(axes: "Axes") -> None:
    """Draw the legend beside the axes, where it covers no line."""
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))


def common_edges(outcomes: Sequence[Outcome]) -> FloatArray:
    """Equal intervals from the first submission to the median end: one slow policy does not compress the others."""
    ends_s = sorted(outcome.result.makespan_s for outcome in outcomes)
    start_s = outcomes[0].run.workload.jobs[0].submitted_at_s
    return start_s + np.linspace(0.0, max(ends_s[len(ends_s) // 2], 1.0), NUM_INTERVALS + 1)


def png(figure: Figure) -> bytes:
    """The same bytes for the same picture."""
    written = io.BytesIO()
    figure.savefig(written, dpi=DPI, format="png", metadata={"Software": None})
    return written.getvalue()


# --- figures -------------------------------------------------------------------------------------------

Bounds = Mapping[tuple[str, int], Bound]  # by trace and number of GPUs, where they are known
Cell = str | int | float | None

VARIANTS_OF_EDF = ("edf", "edf-admission", "edf-elastic-late-last")
BEST_EFFORT_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
REFERENCE = "gandiva"  # whose completion times the paper divides by those of the others
NUM_DUE_JOBS, DURATIONS = 100, 1.5  # of the paper's comparison of efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A picture with its numbers. title, caption: plain text."""

    title: str
    caption: str
    png: bytes
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def sections(matrix: RunMatrix, runner: Runner, bounds: Bounds) -> Iterator[Section]:
    """All figures, in the order of the paper; on several GPU types without the baselines, which know none."""
    yield over_time(matrix, runner)
    for cluster in matrix.clusters:
        yield ratios(matrix, runner, cluster, bounds)
    if len(matrix.clusters[0].gpu_types) == 1:
        yield sources_of_improvement(matrix, runner)
    yield efficiencies(matrix, runner)
    yield mixes(matrix, runner)


def over_time(matrix: RunMatrix, runner: Runner) -> Section:
    """Figure 7: GPUs held, and jobs submitted and admitted, during one run of each policy."""
    workload, cluster = matrix.workloads[0], matrix.clusters[0]
    outcomes = _of_all(matrix, runner, workload, cluster)
    edges_s_B = common_edges(outcomes)
    hours_B = (edges_s_B - edges_s_B[0]) / HOUR_S
    figure, (gpus, jobs) = panels(2)
    lines_over_time(
        gpus,
        edges_s_B,
        {outcome.run.policy: held_gpus(outcome.result).means(edges_s_B) for outcome in outcomes},
    )
    ours = outcomes[0]
    admitted = [fate for fate in ours.result.fates if fate.admitted]
    for label, fates in (("submitted", ours.result.fates), (f"admitted, {ours.run.policy}", admitted)):
        at_s = np.array([fate.job.submitted_at_s for fate in fates])
        jobs.step(hours_B, np.searchsorted(at_s, edges_s_B, side="right"), where="post", label=label)
    gpus.set_ylabel("GPUs held")
    jobs.set_ylabel("jobs")
    jobs.set_xlabel("hours since the first submission")
    legend(gpus)
    legend(jobs)
    return Section(
        title=f"Figure 7. GPUs and jobs over time: {workload.name} on {cluster.num_gpus} GPUs",
        caption="Admission control rejects jobs in a burst; elastic policies use the GPUs that are left.",
        png=png(figure),
        columns=("policy", "admitted", "met", "late", "GPU-hours", "makespan, hours"),
        rows=tuple(
            (
                outcome.run.policy,
                outcome.result.num_admitted,
                outcome.result.num_met(),
                outcome.result.num_late(),
                outcome.result.gpu_hours,
                outcome.result.makespan_s / HOUR_S,
            )
            for outcome in outcomes
        ),
    )


def ratios(matrix: RunMatrix, runner: Runner, cluster: ClusterShape, bounds: Bounds) -> Section:
    """Figure 8: the deadline satisfactory ratio by policy and trace, and the bound."""
    traces = [workload.name for workload in matrix.workloads]
    heights: dict[str, list[float]] = {policy: [] for policy in matrix.policies}
    limits: list[float | None] = []
    for workload in matrix.workloads:
        outcomes = _of_all(matrix, runner, workload, cluster)
        for outcome in outcomes:
            heights[outcome.run.policy].append(_ratio(outcome))
        bound = bounds.get((workload.name, cluster.num_gpus))
        limits.append(bound.jobs_met / max(outcomes[0].result.num_slo, 1) if bound is not None else None)
    figure, (axes,) = panels(1)
    bars(axes, traces, heights)
    for position, limit in enumerate(limits):
        if limit is not None:
            axes.hlines(limit, position - 0.42, position + 0.42, color="black", linestyle=":")
    axes.set_ylabel("deadline satisfactory ratio")
    legend(axes)
    return Section(
        title=f"Figure 8. Deadline satisfactory ratio by policy and trace: {cluster.num_gpus} GPUs",
        caption="SLO jobs that end by their deadline, of all submitted. Dotted: no scheduler can meet more.",
        png=png(figure),
        columns=("policy", *traces),
        rows=(*((policy, *values) for policy, values in heights.items()), ("bound", *limits)),
    )


def sources_of_improvement(matrix: RunMatrix, runner: Runner) -> Section:
    """Figure 9: gains of admission control and elastic scaling, alone and together, by cluster size."""
    workload = matrix.workloads[0]
    sizes = [f"{cluster.num_gpus} GPUs" for cluster in matrix.clusters]
    heights = {
        policy: [
            _ratio(outcome)
            for outcome in runner(matrix.run_of(workload, cluster, policy) for cluster in matrix.clusters)
        ]
        for policy in dict.fromkeys((*VARIANTS_OF_EDF, matrix.policies[0]))
    }
    figure, (axes,) = panels(1)
    bars(axes, sizes, heights)
    axes.set_ylabel("deadline satisfactory ratio")
    legend(axes)
    return Section(
        title=f"Figure 9. Sources of improvement: {workload.name}",
        caption="Earliest deadline first: alone, with admission control, with elastic scaling; and both together.",
        png=png(figure),
        columns=("policy", *sizes),
        rows=tuple((policy, *values) for policy, values in heights.items()),
    )


def efficiencies(matrix: RunMatrix, runner: Runner) -> Section:
    """Figure 10: cluster efficiency over time, with deadlines that let policies run the same jobs."""
    given, cluster = matrix.workloads[0], matrix.clusters[0]
    workload = due_after(Workload.of(given.name, given.jobs[:NUM_DUE_JOBS]), DURATIONS)
    outcomes = _of_all(matrix, runner, workload, cluster)
    edges_s_B = common_edges(outcomes)
    figure, (axes,) = panels(1)
    lines_over_time(
        axes,
        edges_s_B,
        {outcome.run.policy: efficiency(outcome.result).means(edges_s_B) for outcome in outcomes},
    )
    axes.set_xlabel("hours since the first submission")
    axes.set_ylabel("cluster efficiency")
    legend(axes)
    return Section(
        title=f"Figure 10. Cluster efficiency: {workload.name}, {cluster.num_gpus} GPUs",
        caption="Equation 8: each GPU counts its part of its job's throughput, relative to that of one GPU. "
        "Policies that reject no job run the same jobs.",
        png=png(figure),
        columns=("policy", "rejected", "mean cluster efficiency", "makespan, hours", "GPU-hours"),
        rows=tuple(
            (
                outcome.run.policy,
                outcome.result.num_rejected,
                outcome.result.cluster_efficiency,
                outcome.result.makespan_s / HOUR_S,
                outcome.result.gpu_hours,
            )
            for outcome in outcomes
        ),
    )


def mixes(matrix: RunMatrix, runner: Runner) -> Section:
    """Figure 11: deadlines met, and how much sooner best-effort jobs end, by their share."""
    workload, cluster = matrix.workloads[0], matrix.clusters[0]
    reference = REFERENCE if REFERENCE in matrix.policies else matrix.policies[0]
    met: dict[str, list[float]] = {policy: [] for policy in matrix.policies}
    sooner: dict[str, list[float | None]] = {policy: [] for policy in matrix.policies}
    for share in BEST_EFFORT_SHARES:
        outcomes = _of_all(matrix, runner, mixed(workload, share), cluster)
        mean_s = {outcome.run.policy: outcome.result.mean_jct_best_effort_s for outcome in outcomes}
        for outcome in outcomes:
            met[outcome.run.policy].append(_ratio(outcome))
        for policy, own_s in mean_s.items():
            other_s = mean_s[reference]
            sooner[policy].append(None if own_s is None or other_s is None else other_s / own_s)
    figure, (above, below) = panels(2)
    for policy, colour in zip(met, colours(len(met)), strict=True):
        above.plot(BEST_EFFORT_SHARES, met[policy], "o-", color=colour, label=policy)
        below.plot(BEST_EFFORT_SHARES, np.array(sooner[policy], dtype=float), "o-", color=colour)
    above.set_ylabel("deadline satisfactory ratio")
    above.set_ylim(0, 1.02)
    below.set_ylabel(f"completion time of {reference}\nover that of each policy")
    for axes in (above, below):
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    below.set_xlabel("share of best-effort jobs")
    legend(above)
    shares = [f"{share:.0%}" for share in BEST_EFFORT_SHARES]
    return Section(
        title=f"Figure 11. Mixes of SLO and best-effort jobs: {workload.name}, {cluster.num_gpus} GPUs",
        caption="Above: deadlines that SLO jobs meet. Below: mean time of best-effort jobs from submission to end, "
        f"that of {reference} over that of each policy.",
        png=png(figure),
        columns=(
            "policy",
            *(f"ratio, {share}" for share in shares),
            *(f"{reference} over it, {share}" for share in shares),
        ),
        rows=tuple((policy, *met[policy], *sooner[policy]) for policy in met),
    )


def _of_all(matrix: RunMatrix, runner: Runner, workload: Workload, cluster: ClusterShape) -> list[Outcome]:
    """The outcomes of all policies, in their order."""
    return runner(matrix.run_of(workload, cluster, policy) for policy in matrix.policies)


def _ratio(outcome: Outcome) -> float:
    return outcome.result.deadline_satisfactory_ratio or 0.0
