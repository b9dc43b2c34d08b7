"""Makes a certificate of every decision of a trace-driven simulation, and has `certificate_checker` check it.

Speeds and overhead come from the trace, progress from the ledger's events, nothing from a plan. A certified schedule
stays valid while its job holds the GPUs planned for now and no event changes the job. After any other event the
schedule is checked again from the new state.

If more nodes are lost than were reserved for, all promises of that moment are void. A void promise is valid again once
it has a schedule that keeps it; until then its job may be late. While such jobs live, the reserve may be in use: the
next loss voids all promises again, and a rejection that cannot be proved counts as unproven.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from elasticflow.shared.frozen_values import memoize_last, memoize_recent
from elasticflow.shared.messages.events import (
    AllocationDecided,
    GpuTypeChanged,
    JobAdmitted,
    JobAmended,
    JobRejected,
    PlacementDecided,
    PlanEvent,
)
from elasticflow.shared.messages.gpus import ShareSchedule
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.rejection import InfeasibleProgram, OverloadedInterval, Unproven
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.scheduling.availability.fill import OUTAGE_S
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.shared.state.fold.ledger_fold import apply
from elasticflow.shared.state.gpu_types import as_recorded, parts
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import NodeState, PoolState, spec_of
from elasticflow.simulator.timing.training_time import Places
from elasticflow.simulator.verification.certificate_checker import Checker, check_packing
from elasticflow.simulator.verification.certificates import (
    CertifiedJob,
    CertifiedPromise,
    GpusFrom,
    Held,
    Level,
    PackedNodes,
    PackingCertificate,
    PromiseCertificate,
    RejectionCertificate,
    sizes_within_a_node,
)
from elasticflow.simulator.verification.packing_search import find_packing
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload

# --- certified jobs ------------------------------------------------------------------------------------
# The jobs of a trace as certificates have them. Speeds and stops come from the trace, progress from the ledger.


class CertifiedJobs:
    """The jobs that run on one GPU type. Their deadlines and iterations are those of the trace until an amendment.

    places: see `TraceVerification`. A promise counts on the worst blocks that its nodes can make: those that the pool
    remembers, without those that joined for the first time after the promise.
    """

    def __init__(self, workload: Workload, resize_cost: ResizeCost, places: Places | None = None) -> None:
        self._traced = {job.job_id: job for job in workload.jobs}
        self._places, self._on_blocks = places, dict[tuple[str, frozenset[int]], _OnBlocks]()
        self._terms = {job.job_id: (float(job.num_iterations), job.deadline_s) for job in workload.jobs}
        self._resize_cost = resize_cost

    def run(self, job_id: str) -> bool:
        """Whether the job runs on this type."""
        return job_id in self._traced

    def amend(self, job_id: str, num_iterations: float, deadline_s: float | None) -> None:
        self._terms[job_id] = (num_iterations, deadline_s)

    def at(self, job_id: str, state: PoolState, now_s: float, *, is_new: bool = False) -> CertifiedJob:
        """The job in this state. is_new: this decision admits or rejects it."""
        job = None if is_new else state.live_jobs.get(job_id)
        promised_at_s = now_s if job is None or job.admitted_at_s is None else job.admitted_at_s
        curve, levels = self._speeds(job_id, state.nodes, promised_at_s)
        traced, (num_iterations, deadline_s) = self._traced[job_id], self._terms[job_id]
        assert deadline_s is not None, job_id
        iteration, num_gpus, stalled_until_s = 0.0, 0, 0.0
        if job is not None:
            iteration = float(job.iteration)
            num_gpus = 0 if job.broken or job.num_added_gpus else len(job.gpus)
        if job is not None and num_gpus:
            if job.training:
                iteration += curve.throughput(num_gpus) * (now_s - job.progressed_at_s)
            else:
                stalled_until_s = job.placed_at_s + self._resize_cost.seconds(num_gpus)
        return CertifiedJob(
            job_id=job_id,
            remaining_iterations=num_iterations - iteration,
            deadline_s=deadline_s,
            levels=levels,
            gpus_per_replica=traced.gpus_per_replica,
            current_num_gpus=num_gpus,
            stalled_until_s=stalled_until_s,
        )

    def _speeds(self, job_id: str, nodes: Map[str, NodeState], promised_at_s: float) -> "_OnBlocks":
        within = frozenset[int]() if self._places is None else _remembered(nodes).within_a_node(promised_at_s)
        if (job_id, within) not in self._on_blocks:
            job = self._traced[job_id]
            curve = job.curve if self._places is None else self._places.on_blocks(job.curve, within)
            levels = _levels(replace(job, curve=curve), self._resize_cost)
            self._on_blocks[job_id, within] = _OnBlocks(curve, levels)
        return self._on_blocks[job_id, within]


class _OnBlocks(NamedTuple):
    curve: ScalingCurve
    levels: tuple[Level, ...]


class _Remembered(NamedTuple):
    """The nodes that a pool remembers, up or not. by_join: when each joined for the first time, if it is a new one, and
    its GPUs. last_join_s: of a new one. within: the numbers of GPUs that are within a node, of all nodes."""

    by_join: tuple[tuple[float, int], ...]
    last_join_s: float
    within: frozenset[int]

    def within_a_node(self, promised_at_s: float) -> frozenset[int]:
        """The numbers of GPUs of which a promise of that instant counts on blocks within a node."""
        if self.last_join_s <= promised_at_s:
            return self.within
        there = (num_gpus for joined_s, num_gpus in self.by_join if joined_s <= promised_at_s)
        return frozenset(sizes_within_a_node(there))


@memoize_recent
def _remembered(nodes: Map[str, NodeState]) -> _Remembered:
    by_join = tuple(
        (node.since_s if node.alive and not node.earlier_incarnations else -math.inf, node.num_gpus)
        for node in nodes.values()
    )
    within = sizes_within_a_node(num_gpus for _, num_gpus in by_join)
    return _Remembered(by_join, max((joined_s for joined_s, _ in by_join), default=-math.inf), frozenset(within))


def state_of(job: Job | None) -> tuple[object, ...]:
    """All that `CertifiedJobs.at` reads of a job, except the time. None: just admitted."""
    if job is None:
        return (0, None, False, 0)
    return (job.generation, job.started_at_s, job.broken, job.iteration)


def _levels(job: TraceJob, resize_cost: ResizeCost) -> tuple[Level, ...]:
    """Every profiled level that leaves each replica a sample of the batch."""
    return tuple(
        Level(num_gpus, rate, resize_cost.seconds(num_gpus))
        for num_gpus, rate in job.curve.rate_by_num_gpus.items()
        if rate > 0 and num_gpus <= job.global_batch_size * job.gpus_per_replica
    )


def _on_whole_replicas(job: CertifiedJob, state: PoolState) -> CertifiedJob:
    """The job without the levels for which the nodes have too few whole replicas."""
    gang = job.gpus_per_replica
    if gang == 1:
        return job
    there = sum(node.num_gpus // gang * gang for node in state.nodes.values() if node.alive)
    return replace(job, levels=tuple(level for level in job.levels if level.num_gpus <= there))


# --- trace verification --------------------------------------------------------------------------------

_NEVER_S = float("inf")


class _Certified(NamedTuple):
    """The last checked state of a promised job, and the GPUs that its schedule plans until changes_s.

    job: that has this state; None: just admitted.
    """

    job: Job | None
    state: tuple[object, ...]
    schedule: tuple[Held, ...]
    num_gpus: int
    changes_s: float


class TraceVerification:
    """Observes a simulation. failures: one sentence for each problem, with its time.

    certificates_checked: one for every promise that is made, amended or moved to another GPU type, for every rejection
    of a deadline and for every allocation.
    certificate_failures: certificates with any problem. unproven: rejections whose certificate claims no proof.
    packings_checked: packings over time that were found, one for each new promise and each allocation.
    packings_missing: those that were not, so that nothing shows who can pay for the migrations. None is sought where
    places are equal, or while nodes are about to end. They hold while no more nodes are lost.
    """

    def __init__(self, workload: Workload, resize_cost: ResizeCost, *, places: Places | None = None) -> None:
        """places: None: all are equal."""
        self._jobs, self._checker, self._has_places = (
            CertifiedJobs(workload, resize_cost, places),
            Checker(),
            places is not None,
        )
        self._certified: dict[str, _Certified] = {}
        self._void = set[str]()  # jobs with a void promise
        self._exposed = set[str]()  # jobs that another loss may make late: once void, or promised beside such jobs
        self._ended: list[str] = []  # since the last certificate
        self._lost_at_s: dict[str, float] = {}  # the last time, by node
        self._announced_s: dict[str, float] = {}  # when its end was last announced or moved, by node
        self._nodes: Map[str, NodeState] | None = None  # of which losses and ends are counted
        self.certificates_checked = self.certificate_failures = self.unproven = 0
        self.packings_checked = self.packings_missing = 0
        self.failures: list[str] = []

    def decided(self, before: PoolState, events: Sequence[PlanEvent], now_s: float) -> None:
        """Check every event of a decision that admits, rejects or allocates."""
        self._forget(before, now_s)
        for event in events:
            match event:
                case JobAdmitted(spec=spec) if spec.job_class is JobClass.SLO:
                    moved = {event.job_id: event.minimum_satisfactory_share, **event.replanned}
                    if self._exposed:
                        self._exposed.add(event.job_id)
                    self._check_new(before, moved, now_s)
                    self._keep_again(before, event.replanned, now_s)
                case JobRejected(reason="deadline"):
                    self._count(now_s, self._check_rejection(before, event, now_s))
                case AllocationDecided():
                    promises = self._unsettled(before, event.planned, now_s)
                    problems = self._check(promises, now_s, self._plannable_gpus(before))
                    known = {job_id: before.live_jobs[job_id].planned_share for job_id in self._void}
                    self._keep_again(before, {**known, **event.planned}, now_s)
                    problems += self._packing_problems(before, now_s)
                    self._count(now_s, [*problems, *self._held_otherwise(before, event.num_gpus_by_job)])
                case _:
                    pass

    def changed(self, after: PoolState, event: JobAmended | GpuTypeChanged, now_s: float) -> None:
        """Check the schedule of a promise with new terms or on another type. after: has the job if it is here now.

        A promise that moves may use the reserve: what that is for has happened. Then another loss may break others.
        """
        self._forget(after, now_s)
        job_id, job = event.job_id, after.live_jobs.get(event.job_id)
        if isinstance(event, JobAmended):
            self._jobs.amend(job_id, event.max_iterations, event.deadline_s)
        if job is None or spec_of(job).job_class is not JobClass.SLO:
            return
        if self._certified.pop(job_id, None) is not None:
            self._ended.append(job_id)
        self._void.discard(job_id)
        now, kept = _gpus_until_ends(after, 0)[0], _gpus_until_ends(after, after.config.reserve_nodes)[0]
        uses_reserve = isinstance(event, GpuTypeChanged) and kept.num_gpus < now.num_gpus
        if not event.minimum_satisfactory_share:
            return
        if not self._jobs.run(job_id):
            self._count(now_s, [f"{job_id}: it does not run on GPUs of its new type"])
            return
        if self._exposed or uses_reserve:
            self._exposed.add(job_id)
        self._check_new(after, {job_id: event.minimum_satisfactory_share, **event.replanned}, now_s)
        self._keep_again(after, event.replanned, now_s)

    def _check_new(self, state: PoolState, moved: Mapping[str, ShareSchedule], now_s: float) -> None:
        """Check a new promise, with the schedules that it moves."""
        promises = [self._promise(state, job_id, moved[job_id], now_s) for job_id in moved if job_id not in self._void]
        problems = self._check(promises, now_s, self._plannable_gpus(state))
        self._count(now_s, [*problems, *self._packing_problems(state, now_s)])

    def _forget(self, state: PoolState, now_s: float) -> None:
        """End the promises of ended jobs, and void all promises if more nodes are lost than were reserved for, or if
        the end of a node that was there is announced or moved.

        While the jobs of that moment live, the reserve may be in use.
        """
        is_void = self._is_void(state, now_s) if state.nodes is not self._nodes else False
        ended = [job_id for job_id in self._certified if is_void or job_id not in state.live_jobs]
        for job_id in ended:
            del self._certified[job_id]
        self._ended += ended
        if ended or self._void or self._exposed:
            self._void = {job_id for job_id in (*self._void, *ended) if job_id in state.live_jobs}
            self._exposed = {job_id for job_id in (*self._void, *self._exposed) if job_id in state.live_jobs}

    def _is_void(self, state: PoolState, now_s: float) -> bool:
        """Whether changes of nodes since the last decision make all promises void."""
        self._nodes, nodes = state.nodes, state.nodes.values()
        lost_at_s = {node.node_id: node.since_s for node in nodes if not node.alive and not node.left}
        is_news = not lost_at_s.items() <= self._lost_at_s.items()
        self._lost_at_s |= lost_at_s
        announced_s = {node.node_id: node.end_announced_s for node in nodes if node.end_announced_s is not None}
        is_announced = not announced_s.items() <= self._announced_s.items()
        self._announced_s |= announced_s
        num_down = sum(node_id in lost_at_s or now_s < at_s + OUTAGE_S for node_id, at_s in self._lost_at_s.items())
        return is_announced or (is_news and num_down > (0 if self._exposed else state.config.reserve_nodes))

    # -- admissions and allocations ----------------------------------------------------------------------

    def _unsettled(
        self, state: PoolState, planned: Mapping[str, ShareSchedule], now_s: float
    ) -> list[CertifiedPromise]:
        """Promises with a new schedule, a changed job, or a change of GPUs by now."""
        promises: list[CertifiedPromise] = []
        for job_id, certified in tuple(self._certified.items()):
            steps, job = planned.get(job_id), state.live_jobs[job_id]
            is_as_checked = job is certified.job or state_of(job) == certified.state
            if steps is not None or now_s >= certified.changes_s or not is_as_checked:
                promises.append(self._promise(state, job_id, steps, now_s))
        return promises

    def _keep_again(self, state: PoolState, planned: Mapping[str, ShareSchedule], now_s: float) -> None:
        """Renew void promises whose schedule meets the deadline and fits beside the others without the reserve."""
        for job_id in sorted(self._void.intersection(planned)):
            promise = self._promise(state, job_id, planned[job_id], now_s)
            if self._check([promise], now_s, _gpus_until_ends(state, state.config.reserve_nodes)):
                del self._certified[job_id]
                self._ended.append(job_id)
            else:
                self._void.remove(job_id)

    def _promise(self, state: PoolState, job_id: str, steps: ShareSchedule | None, now_s: float) -> CertifiedPromise:
        """The promise of the job as it is now, with a new schedule or its previous one."""
        job = state.live_jobs.get(job_id)
        known = self._certified.get(job_id)
        schedule = known.schedule if known and steps is None else _schedule_of(steps or ())
        self._certified[job_id] = _Certified(job, state_of(job), schedule, *_held_at(schedule, now_s))
        return CertifiedPromise(job=self._jobs.at(job_id, state, now_s), schedule=schedule)

    def _check(self, promises: Iterable[CertifiedPromise], now_s: float, gpus: tuple[GpusFrom, ...]) -> list[str]:
        ended, self._ended = tuple(self._ended), []
        (_, num_gpus), *later = gpus
        return self._checker.check_promises(
            PromiseCertificate(
                now_s=now_s, num_gpus=num_gpus, promises=tuple(promises), ended=ended, later=tuple(later)
            )
        )

    def _packing_problems(self, state: PoolState, now_s: float) -> list[str]:
        """Seek a packing over time of all schedules on the nodes that are up, from where the jobs are, and check it."""
        nodes = sorted(
            (node.node_id, node.num_gpus) for node in state.nodes.values() if node.alive and not node.draining
        )
        num_gpus = sum(count for _, count in nodes)
        (_, num_plannable), *later = self._plannable_gpus(state)
        stays = not later and num_plannable <= num_gpus and not self._exposed
        if not self._has_places or len(nodes) < 2 or not stays:
            return []
        starts = accumulate((count for _, count in nodes), initial=0)
        first = {node_id: start for (node_id, _), start in zip(nodes, starts, strict=False)}
        promises, positions = list[CertifiedPromise](), dict[str, tuple[int, ...]]()
        for job_id, certified in self._certified.items():
            job = state.live_jobs.get(job_id)
            promises.append(CertifiedPromise(job=self._jobs.at(job_id, state, now_s), schedule=certified.schedule))
            held = job.gpus if job is not None else ()
            positions[job_id] = tuple(first[gpu.node_id] + gpu.gpu_index for gpu in held if gpu.node_id in first)
        packed_nodes = PackedNodes.of([count for _, count in nodes])
        packing = find_packing(promises, positions, packed_nodes, now_s)
        if packing is None:
            self.packings_missing += 1
            return []
        self.packings_checked += 1
        return check_packing(
            PackingCertificate(
                now_s=now_s,
                nodes=packed_nodes,
                promises=tuple(promises),
                positions=positions,
                packing=packing,
            )
        )

    def _plannable_gpus(self, state: PoolState) -> tuple[GpusFrom, ...]:
        """Once the reserve is used for promises that would break (docs/adr/0013), all are planned on it."""
        return _gpus_until_ends(state, 0 if self._exposed else state.config.reserve_nodes)

    def _held_otherwise(self, state: PoolState, num_gpus_by_job: Mapping[str, int]) -> list[str]:
        """The problems where the allocation differs from the certified schedules."""
        problems = [
            f"{job_id}: the allocation gives it {given} GPUs, its schedule {certified.num_gpus}"
            for job_id, certified in self._certified.items()
            if (given := num_gpus_by_job.get(job_id, 0)) != certified.num_gpus
        ]
        total = sum(num_gpus_by_job.values())
        if total > state.num_gpus:
            problems.append(f"{total} of {state.num_gpus} GPUs are allocated")
        return problems

    # -- rejections ----------------------------------------------------------------------------------------

    def _check_rejection(self, state: PoolState, event: JobRejected, now_s: float) -> list[str]:
        if event.infeasibility_certificate is None:
            return [f"{event.job_id}: it is rejected without an infeasibility certificate"]
        counts_others = isinstance(event.infeasibility_certificate, OverloadedInterval | InfeasibleProgram)
        beside = self._certified if counts_others else ()
        (_, num_gpus), *later = self._plannable_gpus(state)
        rejection = RejectionCertificate(
            now_s=now_s,
            num_gpus=num_gpus,
            later=tuple(later),
            arriving_job=_on_whole_replicas(self._jobs.at(event.job_id, state, now_s, is_new=True), state),
            promised=tuple(self._jobs.at(job_id, state, now_s) for job_id in beside),
            infeasibility_certificate=event.infeasibility_certificate,
        )
        problems = self._checker.check_rejection(rejection)
        is_unsure = bool(problems and self._exposed)
        self.unproven += is_unsure or isinstance(event.infeasibility_certificate, Unproven)
        return [] if is_unsure else problems

    def _count(self, now_s: float, problems: list[str]) -> None:
        self.certificates_checked += 1
        self.certificate_failures += bool(problems)
        self.failures += [f"at {now_s} s: {problem}" for problem in problems]


def _schedule_of(steps: ShareSchedule) -> tuple[Held, ...]:
    return tuple(map(Held, steps[0::3], steps[1::3], map(int, steps[2::3])))


def _held_at(schedule: tuple[Held, ...], now_s: float) -> tuple[int, float]:
    """GPUs held now, and the end of holding them."""
    for start_s, end_s, num_gpus in schedule:
        if now_s < start_s:
            return 0, start_s
        if now_s < end_s:
            return num_gpus, end_s
    return 0, _NEVER_S


def _gpus_until_ends(state: PoolState, reserve_nodes: int) -> tuple[GpusFrom, ...]:
    return _gpus_of(state.nodes, state.config.leave_s, reserve_nodes)


@memoize_last
def _gpus_of(nodes: Map[str, NodeState], leave_s: float, reserve_nodes: int) -> tuple[GpusFrom, ...]:
    """GPUs left when the largest nodes are down, as many as the pool reserves for, while each node has not ended.

    A node ends `leave_s` before the end that it has announced: then its jobs have to move.
    """
    there = [
        (math.inf if node.until_s is None else node.until_s, node.num_gpus)
        for node in nodes.values()
        if node.alive and not node.draining
    ]
    num_down = sum(not node.alive and not node.left for node in nodes.values())
    reserved = max(reserve_nodes - num_down, 0)
    steps = list[GpusFrom]()
    for from_s in (-math.inf, *sorted({until_s for until_s, _ in there} - {math.inf})):
        sizes = sorted(num_gpus for until_s, num_gpus in there if until_s > from_s)
        steps.append(GpusFrom(from_s - leave_s, sum(sizes[: max(len(sizes) - reserved, 0)])))
    return tuple(steps)


# --- verification by type ------------------------------------------------------------------------------
# Certificates of a simulation on several GPU types: the part of each type is checked as a pool of its own.


class VerificationByType:
    """Observes a simulation. The numbers are sums over the types; see `TraceVerification`."""

    def __init__(
        self, workload: Workload, cluster: ClusterShape, resize_cost: ResizeCost, places: Places | None = None
    ) -> None:
        """places: None: all are equal. Else promises count on the worst buddy block of each size."""
        self.blocks = PlacedBlocks(cluster)
        self._by_type = {
            gpu_type: TraceVerification(workload.on_type(gpu_type), resize_cost, places=places)
            for gpu_type in cluster.gpu_types
        }

    @property
    def certificates_checked(self) -> int:
        return sum(each.certificates_checked for each in self._by_type.values())

    @property
    def certificate_failures(self) -> int:
        return sum(each.certificate_failures for each in self._by_type.values())

    @property
    def unproven(self) -> int:
        return sum(each.unproven for each in self._by_type.values())

    @property
    def packings_checked(self) -> int:
        return sum(each.packings_checked for each in self._by_type.values())

    @property
    def packings_missing(self) -> int:
        return sum(each.packings_missing for each in self._by_type.values())

    @property
    def failures(self) -> list[str]:
        return [failure for each in self._by_type.values() for failure in each.failures]

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        """Check the events of each type against the part of the pool that has this type.

        A changed promise is checked against the part after it: then its job is on its new type.
        """
        self.blocks.decided(before, events)
        unchecked = list[PlanEvent]()
        for event in events:
            unchecked.append(event)
            if isinstance(event, JobAmended | GpuTypeChanged):
                self._check(before, unchecked[:-1], now_s)
                for each in unchecked:
                    before = apply(before, each, before.sequence + 1)
                unchecked = []
                for verification, part, _ in self._parts(before):
                    verification.changed(part, event, now_s)
        self._check(before, unchecked, now_s)

    def _check(self, before: PoolState, events: Sequence[PlanEvent], now_s: float) -> None:
        for verification, part, recorded in self._parts(before):
            of_type = events if part is before else tuple(_of_type(part, recorded, events))
            verification.decided(part, of_type, now_s)

    def _parts(self, state: PoolState) -> Iterator[tuple[TraceVerification, PoolState, str]]:
        by_recorded = parts(state)
        for name, verification in self._by_type.items():
            recorded = as_recorded(state, name)
            yield verification, by_recorded[recorded], recorded


def _of_type(part: PoolState, recorded: str, events: Iterable[PlanEvent]) -> Iterator[PlanEvent]:
    """Admission's decisions on this type, and its part of an allocation."""
    for event in events:
        match event:
            case JobAdmitted(gpu_type=gpu_type) | JobRejected(gpu_type=gpu_type):
                if gpu_type == recorded:
                    yield event
            case AllocationDecided():
                yield replace(
                    event,
                    num_gpus_by_job={job: n for job, n in event.num_gpus_by_job.items() if job in part.live_jobs},
                    planned={job: share for job, share in event.planned.items() if job in part.live_jobs},
                )
            case _:
                pass


# --- placed blocks ------------------------------------------------------------------------------------
# Where promised jobs are: whether each is on as few nodes as a buddy block of its size needs at worst.
#
# Independent of the scheduler: it knows the sizes of the nodes only. A block of 2^s GPUs lies within a node wherever
# 2^s divides the sizes of all nodes (docs/adr/0107).


class PlacedBlocks:
    """placements: of promised jobs, that were checked. apart: those on more nodes."""

    def __init__(self, cluster: ClusterShape) -> None:
        self.placements = self.apart = 0
        self._within_a_node: Mapping[str, int] = {
            gpu_type: min(
                node.num_gpus & -node.num_gpus for node in cluster.nodes.values() if node.gpu_type == gpu_type
            )
            for gpu_type in cluster.gpu_types
        }
        self._type_of_node = {node_id: node.gpu_type for node_id, node in cluster.nodes.items()}

    def decided(self, before: PoolState, events: Sequence[PlanEvent]) -> None:
        """Check the placements of a decision."""
        for event in events:
            for placed in event.placements if isinstance(event, PlacementDecided) else ():
                own = placed.gpus[: len(placed.gpus) - placed.num_added_gpus]
                if not own or not before.live_jobs[placed.job_id].promised:
                    continue
                largest = self._within_a_node[self._type_of_node[own[0].node_id]]
                self.placements += 1
                self.apart += len({gpu.node_id for gpu in own}) > math.ceil(len(own) / largest)
