"""The executor's judgement: compare what the ledger places here with what runs here, and act on the difference.

Level-triggered: any state is a fine one to begin from. A fact is told for as long as the ledger does not say it,
which is once; an action is taken for as long as the processes are not as they should be.
"""

from functools import partial

from services.executor.asked_checkpoints import asked_checkpoint
from services.executor.model import Membership, Offer, State, evolve, is_current, start
from services.executor.notes import Action, Depart, KillWorkers, WorkerId
from services.executor.observing import observe
from services.executor.staffing import ends, kill_due_s, losses, notice_due_s, starts
from services.executor.verdict import crash_due_s, end_of_job, overdue_at_s
from shared.messages import from_worker
from shared.messages.commands import Command
from shared.messages.events import (
    GenerationStarted,
    JobEvent,
    NodeEvent,
    NodeJoined,
    NodeLost,
    RendezvousOpened,
    ThroughputMeasured,
    WorkerLagged,
    WorkersStopped,
)
from shared.messages.fold_workers import lag_is_news
from shared.messages.job_state import Job, Phase
from shared.messages.policy import Policy
from shared.messages.pool_state import spec_of

Output = JobEvent | NodeEvent | Action


def executor_policy(offer: Offer) -> Policy[State]:
    """The policy of the executor of one node."""
    return Policy(
        service="executor",
        start=partial(start, offer=offer),
        pool=lambda state: state.pool,
        evolve=evolve,
        observe=observe,
        decide=decide,
        wake_at_s=wake_at_s,
    )


def decide(state: State, commands: tuple[Command, ...], now_s: float) -> tuple[Output, ...]:
    """Facts that the ledger does not know yet, and what to do with the processes of this node."""
    if state.membership is not Membership.MEMBER:
        return _outside(state, now_s)
    job_ids = sorted(state.job_ids | {worker.id.job_id for worker in state.running})
    outputs = [output for job_id in job_ids for output in _of_a_job(state, job_id, now_s)]
    outputs += starts(state)
    if state.leaving and not state.running:
        outputs.append(_farewell(state, now_s))
    return tuple(outputs)


def wake_at_s(state: State) -> float | None:
    """When a grace ends, or a silence becomes a crash."""
    if state.membership is not Membership.MEMBER:
        return None
    due_s: list[float | None] = []
    for worker in state.workers.values():
        job = state.pool.job(worker.id.job_id)
        due_s += (
            kill_due_s(state, worker),
            notice_due_s(state, job, worker),
            crash_due_s(state, job, worker),
            overdue_at_s(state, job, worker),
        )
    return min((at_s for at_s in due_s if at_s is not None), default=None)


# --- the node -------------------------------------------------------------------------------------------


def _outside(state: State, now_s: float) -> tuple[Output, ...]:
    """Whoever is no member trains nothing; then it joins, or goes."""
    if state.running:
        generations = dict.fromkeys(w.id[:2] for w in state.running if not w.kill_asked)
        return tuple(KillWorkers(job_id=job_id, generation=generation) for job_id, generation in generations)
    if state.leaving or state.membership is Membership.REPLACED:
        return (Depart(replaced=state.membership is Membership.REPLACED),)
    joined = NodeJoined(
        node_id=state.node_id,
        incarnation=state.incarnation,
        num_gpus=state.offer.num_gpus,
        device=state.offer.device,
        sockets=state.offer.sockets,
        rack=state.offer.rack,
        at_s=now_s,
    )
    return (joined,)


def _farewell(state: State, now_s: float) -> NodeLost:
    """The last word. How far the jobs got that were placed here is in their checkpoints: nobody in the ledger asked
    their workers to stop, so nobody waits for `WorkersStopped`."""
    return NodeLost(node_id=state.node_id, incarnation=state.incarnation, reason="left", at_s=now_s)


# --- one job --------------------------------------------------------------------------------------------


def _of_a_job(state: State, job_id: str, now_s: float) -> list[Output]:
    job = state.pool.job(job_id)
    workers = state.workers_of(job_id)
    outputs: list[Output] = [*ends(state, job, workers, now_s)]
    if job is None:
        return outputs
    outputs += losses(state, job)
    if is_current(job):
        outputs += _milestones(state, job, now_s)
    outputs += asked_checkpoint(job, workers, now_s)
    if (end := end_of_job(state, job, workers, now_s)) is not None:
        outputs.append(end)
    still_here = {generation for worker in workers if worker.runs for generation in worker.generations}
    outputs += [
        _stopped(state, job, stopping.generation, now_s)
        for stopping in job.stopping
        if stopping.node_id == state.node_id and stopping.generation not in still_here
    ]
    return outputs


def _stopped(state: State, job: Job, generation: int, now_s: float) -> WorkersStopped:
    workers = (worker for worker in state.workers_of(job.job_id) if worker.id.generation == generation)
    known = (worker.checkpoint_iteration for worker in workers)
    return WorkersStopped(
        job_id=job.job_id,
        generation=generation,
        node_id=state.node_id,
        iteration=max((iteration for iteration in known if iteration is not None), default=None),
        at_s=now_s,
    )


def _milestones(state: State, job: Job, now_s: float) -> list[Output]:
    """What rank 0 of the newest generation has reached, if it is here; before it goes over, where it listens."""
    rank0_id = WorkerId(job.job_id, job.generation, 0)
    facts: list[Output] = []
    first = next((w for w in state.workers_of(job.job_id) if w.runs and w.place == rank0_id), None)
    if first is not None and first.port is not None and not job.rendezvous:
        address = f"{state.offer.advertise_host}:{first.port}"
        facts.append(RendezvousOpened(job_id=job.job_id, generation=job.generation, address=address))
    rank0 = state.workers.get(rank0_id)
    if rank0 is None:
        return facts
    if rank0.trains and job.started_at_s is None:
        facts.append(
            GenerationStarted(
                job_id=job.job_id,
                generation=job.generation,
                num_gpus=len(job.gpus),
                iteration=rank0.first_iteration,  # not how far it came since: that is on no disk
                resize=rank0.resize,
                at_s=now_s,
            )
        )
    if rank0.lagged is not None and lag_is_news(state.pool, job, rank0.lagged.rank, rank0.lagged_at_s):
        facts.append(
            WorkerLagged(
                job_id=job.job_id,
                generation=job.generation,
                rank=rank0.lagged.rank,
                slowdown=rank0.lagged.slowdown,
                at_s=rank0.lagged_at_s,
            )
        )
    if isinstance(rank0.outcome, from_worker.Profiled) and not _is_measured(state, job):
        facts.append(_measured(job, rank0.outcome, now_s))
    return facts


def _is_measured(state: State, job: Job) -> bool:
    """Its speed on this many GPUs is known, or nobody waits for it any more."""
    curve = state.pool.curves.get(spec_of(job).profile_key)
    known = curve is not None and len(job.gpus) in curve.iterations_per_s
    return known or job.phase is not Phase.PROFILING


def _measured(job: Job, profiled: from_worker.Profiled, now_s: float) -> ThroughputMeasured:
    return ThroughputMeasured(
        profile_key=spec_of(job).measured_key,
        num_gpus=len(job.gpus),
        iterations_per_s=profiled.iterations_per_s,
        dataset_size=profiled.dataset_size,
        job_id=job.job_id,
        generation=job.generation,
        source="profile",
        at_s=now_s,
    )
