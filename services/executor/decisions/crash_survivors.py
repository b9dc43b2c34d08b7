"""Which workers survive a crash, and how they continue: by a switch to the next generation, as at any resize. Pure.

A survivor is a worker of the previous generation that holds the state of the job and does not count as lost. Its node
sends it `PeersLost`: it stops waiting for the lost peers and rolls back to its last step boundary. Once placement has
decided the next generation (services/placement/shrink_to_survivors.py), the node sends it `PrepareSwitch`. A survivor
that reacts to neither is killed, and counts as lost too.
"""

from elasticflow.services.executor.decisions.local_events_and_actions import SendToWorker
from elasticflow.services.executor.decisions.state import State, gpu_types_by_rank
from elasticflow.services.executor.decisions.worker_record import WorkerRecord
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.messages.worker_protocol.to_worker import PeersLost, PrepareSwitch
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import spec_of

# to notice a lost peer, if longer than `peer_loss_notice_s`; a collective inside a GPU never does
NOTICE_STEPS = 3


def surviving_workers(state: State, job: Job) -> list[WorkerRecord]:
    """Workers of this node that hold the state of the job in its previous generation, in rank order."""
    if job.previous_generation is None:
        return []
    holders = [worker for worker in state.workers_of(job.job_id) if worker.runs and worker.trains]
    return [worker for gpu in job.previous_generation.surviving for worker in holders if worker.gpu == gpu]


def is_counted_as_lost(job: Job | None, worker: WorkerRecord) -> bool:
    """Whether the job already continues without this worker, by the ledger."""
    if job is None or job.previous_generation is None:
        return False
    is_older = job.broken or worker.id.generation < job.generation
    return is_older and worker.gpu in job.previous_generation.lost


# --- how they continue -----------------------------------------------------------------------------------


def peers_lost(state: State, job: Job) -> list[SendToWorker]:
    """Inform each survivor once of a generation that has lost workers: the network may never report it."""
    before = job.previous_generation
    if before is None or before.trains:
        return []
    broken = job.generation if job.broken else job.generation - 1  # the newest that is
    return [
        SendToWorker(worker=worker.id, message=PeersLost(generation=broken))
        for worker in surviving_workers(state, job)
        if not worker.kill_requested and worker.peers_lost_sent < broken
    ]


def switch_orders(state: State, job: Job) -> list[SendToWorker]:
    """Order each worker of the previous generation once to switch to the newest, or to leave with that switch."""
    if job.has_outdated_spec:  # its workers have an older spec: they must stop
        return []
    gpus = rendezvous_gpus(job)
    orders: list[SendToWorker] = []
    for worker in surviving_workers(state, job):
        if worker.is_ending or worker.newest_generation >= job.generation:
            continue
        rendezvous_rank = gpus.index(worker.gpu)
        order = PrepareSwitch(
            generation=job.generation,
            rendezvous_rank=rendezvous_rank,
            world_size=len(job.gpus),
            rendezvous_size=len(gpus),
            rendezvous=job.rendezvous if rendezvous_rank else "",
            micro_batch_size=job.micro_batch_size or 0,
            virtual_nodes_by_rank=job.virtual_nodes_by_rank,
            gpu_types_by_rank=gpu_types_by_rank(state, job),
        )
        orders.append(SendToWorker(worker=worker.id, message=order))
    return orders


def rendezvous_gpus(job: Job) -> tuple[GpuId, ...]:
    """GPUs of all workers in the rendezvous of a switch, by rendezvous rank: the new ranks, then leaving workers."""
    before = job.previous_generation
    return () if before is None else (*job.gpus, *(gpu for gpu in before.surviving if gpu not in job.gpus))


# --- survivors that do not continue ---------------------------------------------------------------------


def is_hopeless(state: State, job: Job | None, worker: WorkerRecord, now_s: float) -> bool:
    """The worker cannot continue, although its generation can: it counts as lost, or noticed no loss in time."""
    due_s = unnoticed_due_s(state, job, worker)
    unaware = due_s is not None and due_s <= now_s
    return unaware or (worker.runs and not worker.kill_requested and is_counted_as_lost(job, worker))


def unnoticed_due_s(state: State, job: Job | None, worker: WorkerRecord) -> float | None:
    """When a survivor counts as lost because it still waits for a lost peer.

    It was sent a stop or a switch and has not reacted, although it had time for a few steps.
    """
    if not worker.runs or worker.kill_requested or job is None or not job.live:
        return None
    if worker.interrupted_at_s is not None or not worker.trains or worker.purpose != "train":
        return None
    before = job.previous_generation
    has_lost_peer = not before.trains if before is not None else job.broken
    sent_s = worker.stop_requested_at_s
    if sent_s is None and worker.switch is not None and worker.is_switching_to(job.generation):
        sent_s = worker.switch.ordered_at_s
    if not has_lost_peer or sent_s is None:
        return None
    timeouts = state.pool.config.timeouts
    step_s = 1.0 / worker.iterations_per_s if worker.iterations_per_s else timeouts.slowest_step_s
    notice_s = max(timeouts.peer_loss_notice_s, NOTICE_STEPS * step_s)
    # An evaluation is progress, and asks its peers for nothing. They wait twice as long as this for the rendezvous.
    latest_s = sent_s + max(notice_s, timeouts.start_timeout_s / 2)
    return min(max(sent_s, worker.progressed_at_s) + notice_s, latest_s)


def wait_ends_s(state: State, job: Job, worker: WorkerRecord) -> float | None:
    """When a running worker is given up: it never joins those that train, or no other worker confirms its lost peer.

    Once its generation trains, it has joined: its own report is late by the difference to rank 0's first step at most.
    """
    started_at_s = job.started_at_s or 0.0
    if worker.interrupted_at_s is not None:
        ordered_at_s = 0.0 if worker.switch is None else worker.switch.ordered_at_s
        return max(worker.interrupted_at_s, ordered_at_s, started_at_s) + _survivor_wait_s(state, job, worker)
    if worker.is_joining and not worker.trains:
        joining_timeout_s = state.pool.config.timeouts_of(spec_of(job)).joining_timeout_s
        return max(worker.start_ordered_at_s, started_at_s) + joining_timeout_s
    return None


def _survivor_wait_s(state: State, job: Job, worker: WorkerRecord) -> float:
    """For the ledger to confirm the loss; or, once a switch is ordered, for the rendezvous of all its workers.

    Joining workers come to the rendezvous only when they have built their models.
    """
    timeouts, before = state.pool.config.timeouts_of(spec_of(job)), job.previous_generation
    if not worker.is_switching_to(job.generation):
        return timeouts.loss_confirmation_s
    is_joined = before is not None and not set(job.gpus) <= set(before.surviving)
    return timeouts.joining_timeout_s if is_joined else timeouts.start_timeout_s
