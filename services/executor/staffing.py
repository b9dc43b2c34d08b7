"""Which worker processes this node should have: whom to start, to stop at a step boundary, to end at once. Pure."""
# pyright: strict

from services.executor.model import State, Worker, is_current
from services.executor.notes import KillWorkers, StartWorker, StopWorkers, TellRendezvous, WorkerId
from shared.messages.cluster import PoolConfig
from shared.messages.pool_state import Job, Phase, spec_of

FENCE_PART = 0.5  # of heartbeat_timeout_s: the rest is for killing, and for clocks that differ in speed


def fence_s(config: PoolConfig) -> float:
    """How long workers go on after the ledger's end was last in sight."""
    return FENCE_PART * config.heartbeat_timeout_s


def ends(
    state: State, job: Job | None, workers: tuple[Worker, ...], now_s: float
) -> list[StopWorkers | KillWorkers]:
    """Which running workers should not run: in their own time where that saves something, else at once."""
    outputs: list[StopWorkers | KillWorkers] = []
    for generation in sorted({worker.id.generation for worker in workers if worker.runs}):
        if _is_wanted(state, job, generation):
            continue
        group = [worker for worker in workers if worker.runs and worker.id.generation == generation]
        job_id = group[0].id.job_id
        overdue = any((at_s := kill_due_s(state, w)) is not None and at_s <= now_s for w in group)
        if overdue or not _may_take_time(job, group):
            if not all(worker.kill_asked for worker in group):
                outputs.append(KillWorkers(job_id=job_id, generation=generation))
        elif not all(worker.end_was_asked for worker in group):
            outputs.append(StopWorkers(job_id=job_id, generation=generation))
    return outputs


def _may_take_time(job: Job | None, group: list[Worker]) -> bool:
    """There are steps to save, or last lines to write."""
    if job is None or not job.live:
        return job is not None and job.phase is Phase.FINISHED
    broken = job.broken and group[0].id.generation == job.generation
    return not broken and any(worker.trains and worker.purpose == "train" for worker in group)


def kill_due_s(state: State, worker: Worker) -> float | None:
    """When the patience with a worker that was asked to stop ends."""
    if not worker.runs or worker.kill_asked or worker.stop_asked_at_s is None:
        return None
    return worker.stop_asked_at_s + state.offer.stop_grace_s


def starts(state: State) -> list[StartWorker | TellRendezvous]:
    """Workers that are placed here and may begin; and the address of rank 0 for those who wait for it."""
    outputs: list[StartWorker | TellRendezvous] = []
    taken = {worker.gpu_index for worker in state.running}
    for job_id in sorted(state.job_ids):
        job = state.pool.live_jobs.get(job_id)
        if job is None or not _may_start(state, job):
            continue
        for rank, gpu in enumerate(job.gpus):
            worker_id = WorkerId(job_id, job.generation, rank)
            if gpu.node_id == state.node_id and worker_id not in state.workers and gpu.gpu_index not in taken:
                taken.add(gpu.gpu_index)
                outputs.append(_start(state, job, worker_id, gpu.gpu_index))
        if job.rendezvous and any(_waits_for_address(worker) for worker in state.workers_of(job_id)):
            outputs.append(TellRendezvous(job_id=job_id, generation=job.generation, address=job.rendezvous))
    return outputs


def _may_start(state: State, job: Job) -> bool:
    """The fence: nothing of an older generation is left anywhere, here least of all."""
    older = any(w.runs and w.id.generation != job.generation for w in state.workers_of(job.job_id))
    return _is_wanted(state, job, job.generation) and not job.stopping and not older and not state.cut_off


def _start(state: State, job: Job, worker_id: WorkerId, gpu_index: int) -> StartWorker:
    return StartWorker(
        worker=worker_id,
        gpu_index=gpu_index,
        world_size=len(job.gpus),
        purpose="profile" if job.phase is Phase.PROFILING else "train",
        spec=spec_of(job),
        checkpoint_iteration=job.checkpoint_iteration,
        fence_s=fence_s(state.pool.config),
        rendezvous=job.rendezvous if worker_id.rank else "",
    )


def _waits_for_address(worker: Worker) -> bool:
    return worker.runs and worker.id.rank != 0 and not worker.rendezvous


def _is_wanted(state: State, job: Job | None, generation: int) -> bool:
    """Workers of this generation should run here."""
    return job is not None and is_current(job) and generation == job.generation and not state.leaving
