"""Which worker processes this node should have: whom to start, to stop at a step boundary, to end at once. Pure."""
# pyright: strict

from services.executor.model import State, Worker, holder_on, is_current, is_lost
from services.executor.notes import (
    ChangeMembers,
    KillWorker,
    KillWorkers,
    StartWorker,
    StopWorkers,
    TellPeersLost,
    TellRendezvous,
    WorkerId,
)
from shared.messages.cluster import GpuId
from shared.messages.job_state import Job, Phase
from shared.messages.pool_state import spec_of

NOTICE_STEPS = 3  # to notice the loss of a peer, where that is more than `notice_s`; inside a GPU nobody does


def ends(
    state: State, job: Job | None, workers: tuple[Worker, ...], now_s: float
) -> list[StopWorkers | KillWorkers | KillWorker]:
    """Which running workers should not run: in their own time where that saves something, else at once."""
    outputs: list[StopWorkers | KillWorkers | KillWorker] = [
        KillWorker(worker=worker.id) for worker in workers if _is_hopeless(state, job, worker, now_s)
    ]
    for generation in sorted({worker.id.generation for worker in workers if worker.runs}):
        group = [worker for worker in workers if worker.runs and worker.id.generation == generation]
        # Whoever goes over with the newest generation, which trains, has done so and is about to say it.
        if any(_is_wanted(state, job, wanted) for worker in group for wanted in worker.generations):
            continue
        job_id = group[0].id.job_id
        overdue = any((at_s := kill_due_s(state, w)) is not None and at_s <= now_s for w in group)
        if overdue or not _may_take_time(job, group):
            if not all(worker.kill_asked for worker in group):
                outputs.append(KillWorkers(job_id=job_id, generation=generation))
        elif not all(worker.end_was_asked for worker in group):
            outputs.append(StopWorkers(job_id=job_id, generation=generation))
    return outputs


def _may_take_time(job: Job | None, group: list[Worker]) -> bool:
    """There are steps to save, also by those who lost a peer, or last lines to write."""
    if job is None or not job.live:
        return job is not None and job.phase is Phase.FINISHED
    return any((worker.trains or worker.joins) and worker.purpose == "train" for worker in group)


def kill_due_s(state: State, worker: Worker) -> float | None:
    """When the patience with a worker that was asked to stop ends."""
    if not worker.runs or worker.kill_asked or worker.stop_asked_at_s is None:
        return None
    return worker.stop_asked_at_s + state.offer.stop_grace_s


def notice_due_s(state: State, job: Job | None, worker: Worker) -> float | None:
    """When a worker that still waits for somebody who is gone counts as gone, too.

    It was told to stop, or to go on with others, and did neither, though it has had time for a few steps.
    """
    if not worker.runs or worker.kill_asked or job is None or not job.live:
        return None
    if worker.interrupted_at_s is not None or not worker.trains or worker.purpose != "train":
        return None
    before = job.predecessor
    missed = not before.trains if before is not None else job.broken
    changes = worker.place.generation == job.generation != worker.id.generation
    told_s = worker.change_told_at_s if changes and worker.stop_asked_at_s is None else worker.stop_asked_at_s
    if not missed or told_s is None:
        return None
    times = state.pool.config.detection
    step_s = 1.0 / worker.iterations_per_s if worker.iterations_per_s else times.slowest_step_s
    return told_s + max(times.notice_s, NOTICE_STEPS * step_s)


def _is_hopeless(state: State, job: Job | None, worker: Worker, now_s: float) -> bool:
    due_s = notice_due_s(state, job, worker)
    unaware = due_s is not None and due_s <= now_s
    return unaware or (worker.runs and not worker.kill_asked and is_lost(state, job, worker))


def losses(state: State, job: Job) -> list[TellPeersLost]:
    """Survivors here that are to wait no longer for whom the ledger counts as gone: the network may never tell."""
    before = job.predecessor
    if before is None or before.trains:
        return []
    broken = job.generation if job.broken else job.generation - 1  # the newest that is
    holders = (holder_on(state, job.job_id, gpu) for gpu in before.surviving)
    return [
        TellPeersLost(worker=worker.id, generation=broken)
        for worker in holders
        if worker is not None and not worker.kill_asked and worker.loss_told < broken
    ]


def starts(state: State) -> list[StartWorker | ChangeMembers | TellRendezvous]:
    """Workers that are placed here and may begin, or go over from the generation before; and the address of place 0
    for those who wait for it."""
    outputs: list[StartWorker | ChangeMembers | TellRendezvous] = []
    taken = {worker.gpu_index for worker in state.running}
    for job_id in sorted(state.job_ids):
        job = state.pool.live_jobs.get(job_id)
        if job is None or not is_current(job) or state.leaving or state.cut_off:
            continue
        outputs += _changes(state, job)
        for rank, gpu in enumerate(job.gpus) if _may_start(state, job) else ():
            worker_id = WorkerId(job_id, job.generation, rank)
            if not _is_due_here(state, job, gpu) or worker_id in state.workers or gpu.gpu_index in taken:
                continue
            taken.add(gpu.gpu_index)
            outputs.append(_start(state, job, worker_id, gpu.gpu_index))
        if job.rendezvous and any(_waits_for_address(job, worker) for worker in state.workers_of(job_id)):
            outputs.append(TellRendezvous(job_id=job_id, generation=job.generation, address=job.rendezvous))
    return outputs


def _may_start(state: State, job: Job) -> bool:
    """The fence: nothing of an older generation is left anywhere, here least of all; unless the new one gets the state
    of the job from its predecessor, which trains on, or nobody does.

    Whoever began has met all others: nobody is started for that generation any more. And nobody joins workers that
    know another spec.
    """
    if job.predecessor is not None:
        return not job.outdated and job.started_at_s is None
    older = any(w.runs and w.id.generation != job.generation for w in state.workers_of(job.job_id))
    return not job.stopping and not older and job.started_at_s is None


def _is_due_here(state: State, job: Job, gpu: GpuId) -> bool:
    """A worker of the newest generation is to be started on this GPU: none of its predecessor goes over there."""
    return gpu.node_id == state.node_id and (job.predecessor is None or gpu not in job.predecessor.surviving)


def _meeting(job: Job) -> tuple[GpuId, ...]:
    """GPUs of all who meet where workers go over to another generation, by place: its ranks, then whoever leaves."""
    before = job.predecessor
    return () if before is None else (*job.gpus, *(gpu for gpu in before.surviving if gpu not in job.gpus))


def _changes(state: State, job: Job) -> list[ChangeMembers]:
    """What workers of the predecessor here are to be told, once each."""
    before, meeting = job.predecessor, _meeting(job)
    if before is None or job.outdated:
        return []
    changes: list[ChangeMembers] = []
    for gpu in before.surviving:
        worker = holder_on(state, job.job_id, gpu)
        if worker is None or not _may_change(worker, job.generation):
            continue
        place = meeting.index(gpu)
        changes.append(
            ChangeMembers(
                worker=worker.id,
                generation=job.generation,
                place=place,
                world_size=len(job.gpus),
                meeting_size=len(meeting),
                rendezvous=job.rendezvous if place else "",
                micro_batch_size=job.micro_batch_size or 0,
            )
        )
    return changes


def _may_change(worker: Worker, generation: int) -> bool:
    """It trains, nobody wants it to end, and it does not know of the generation yet."""
    return worker.runs and worker.trains and not worker.end_was_asked and worker.place.generation < generation


def _start(state: State, job: Job, worker_id: WorkerId, gpu_index: int) -> StartWorker:
    return StartWorker(
        worker=worker_id,
        gpu_index=gpu_index,
        world_size=len(job.gpus),
        purpose="profile" if job.phase is Phase.PROFILING else "train",
        spec=spec_of(job),
        checkpoint_iteration=job.checkpoint_iteration,
        detection=state.pool.config.detection,
        rendezvous=job.rendezvous if worker_id.rank else "",
        meeting_size=len(_meeting(job)),
        micro_batch_size=job.micro_batch_size or 0,
    )


def _waits_for_address(job: Job, worker: Worker) -> bool:
    _, generation, place = worker.place
    return worker.runs and generation == job.generation and place != 0 and not worker.rendezvous


def _is_wanted(state: State, job: Job | None, generation: int) -> bool:
    """Workers of this generation should run here: of the newest, and those that have the state of the job."""
    if job is None or not job.live or state.leaving:
        return False
    before = job.predecessor
    if before is not None and generation == before.generation:
        return True
    return generation == job.generation and not job.broken
