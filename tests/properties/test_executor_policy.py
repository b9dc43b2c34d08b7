"""After any history of placements, cancellations, crashes and losses, the fence holds and the newest placement runs.

Random histories of a pool of two nodes: node-0 is the executor under test, the test plays node-1.
"""

from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.services.executor.decisions.local_events_and_actions import (
    ContactLost,
    ContactRestored,
    StartWorker,
    WorkerEnded,
    WorkerId,
    WorkerReported,
)
from elasticflow.services.executor.decisions.state import PoolMembership, WorkerRecord
from elasticflow.services.placement.due_jobs import shrunk_to_survivors
from elasticflow.shared.messages import events
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.timeouts import FailureTimeouts
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointFailed,
    CheckpointWritten,
    ExitCode,
    Failed,
    Finished,
    Profiled,
    RendezvousListening,
    Started,
    Switched,
)
from elasticflow.shared.state.job import Job
from tests.support.example_specs import examples
from tests.support.executor_node import TIMELINE, ExecutorNode

JOBS = ("a", "b", "c", "d", "e")
GPUS = tuple(GpuId(node_id, index) for node_id in ("node-0", "node-1") for index in range(3))
REPORTS = (
    RendezvousListening(generation=1, port=4000),
    CheckpointWritten(iteration=9),
    CheckpointWritten(iteration=9, request=3, num_bytes=10, file="a.ckpt"),
    CheckpointFailed(request=3, reason="full"),
    Profiled(iterations_per_s=1.0, dataset_size=10),
    Finished(iteration=100, condition="max_iterations"),
    Failed(error="ValueError"),
)
ENDS = (*((code, None) for code in (*ExitCode, 1)), (None, 9))


class StrictNode(ExecutorNode):
    """Asserts what must hold at each step; the base class asserts one generation a job and one worker a GPU."""

    is_deciding = False

    def _round(self) -> bool:
        self.is_deciding = True
        try:
            return super()._round()
        finally:
            self.is_deciding = False

    def _act(self, action: Any) -> None:
        if isinstance(action, StartWorker):
            job = self.state.pool.live_jobs[action.worker.job_id]
            assert not job.broken, "starts a broken generation"
            assert job.previous_generation is not None or job.stopping == (), (
                "starts before the older generations are gone"
            )
        super()._act(action)

    def _fold(self, message: Any) -> None:
        if self.is_deciding:
            assert not self.unchanged_by(message), f"emitted, and the ledger holds it: {message}"
        if self.is_deciding and isinstance(message, events.WorkersStopped):
            assert (message.job_id, message.generation) not in {worker[:2] for worker in self.processes}
        if self.is_deciding and isinstance(message, events.NodeJoined):
            assert not self.processes, "joins with workers of an earlier incarnation"
        super()._fold(message)


class Pool:
    """What may happen on node-0 and around it. choice: any number, taken modulo the number of options."""

    def __init__(self, profiled: set[str], stop_free: bool) -> None:
        self.run = 0
        self.node = StrictNode(run_id="run-0").settle()
        if stop_free:
            self.node.stop_free()
        self.other_node_restarts(0)
        for job_id in JOBS:
            if job_id in profiled:
                self.node.profile(job_id)
            else:
                self.node.admit(job_id)
        for job, gpu in zip(self.jobs, GPUS[::3], strict=False) if stop_free else ():
            self.node.place_on((gpu,), job.job_id)
            self.all_start(0)

    @property
    def jobs(self) -> list[Job]:
        return sorted(self.node.state.pool.live_jobs.values(), key=lambda job: job.job_id)

    # -- the rest of the pool

    def admit_after_profile(self, choice: int) -> None:
        for job in _one(self.jobs, choice):
            self.node.admit(job.job_id)

    def resize(self, choice: int) -> None:
        """As `place`, for a job that trains, if there is one."""
        training = [number for number, job in enumerate(self.jobs) if job.training]
        for number in _one(training, choice):
            self.place(number + len(JOBS) * (choice // len(JOBS)))

    def place(self, choice: int) -> None:
        for job in _one(self.jobs, choice % len(JOBS)):
            choice //= len(JOBS)
            taken = {gpu for other in self.jobs if other.job_id != job.job_id for gpu in other.gpus}
            alive = {node.node_id for node in self.node.state.pool.nodes.values() if node.alive}
            start = choice % len(GPUS)
            free = [g for g in (*GPUS[start:], *GPUS[:start]) if g not in taken and g.node_id in alive]
            self.node.place_on(tuple(free[: (0, 1, 2, 3, 4)[choice // len(GPUS) % 5]]), job.job_id)

    def shrink_to_survivors(self, choice: int) -> None:
        """As placement does after a loss."""
        for placed in shrunk_to_survivors(self.node.state.pool):
            self.node.place_on(placed.gpus, placed.job_id)

    def cancel(self, choice: int) -> None:
        for job in _one(self.jobs, choice):
            self.node.ledger(events.JobCancelled(job_id=job.job_id, reason="", at_s=self.node.now_s))

    def crash_elsewhere(self, choice: int) -> None:
        for job in _one([job for job in self.jobs if "node-1" in job.nodes], choice):
            self._crash_on_node_1(job)

    def _crash_on_node_1(self, job: Job) -> None:
        crashed = events.WorkerCrashed(
            job_id=job.job_id,
            generation=job.generation,
            node_id="node-1",
            rank=0,
            explanation="",
            at_s=self.node.now_s,
        )
        self.node.ledger(crashed)

    def other_node_reports(self, choice: int) -> None:
        pool = self.node.state.pool
        for job in (*pool.live_jobs.values(), *pool.ended_jobs.values()):
            for stopping in job.stopping:
                if stopping.node_id == "node-1":
                    self.node.ledger(
                        events.WorkersStopped(
                            job_id=job.job_id,
                            generation=stopping.generation,
                            node_id="node-1",
                            at_s=self.node.now_s,
                        )
                    )

    def other_node_listens(self, choice: int) -> None:
        for job in self.jobs:
            if job.gpus and job.gpus[0].node_id == "node-1":
                self.node.ledger(
                    events.RendezvousOpened(job_id=job.job_id, generation=job.generation, address="10.0.0.2:1")
                )

    def other_node_restarts(self, choice: int) -> None:
        self.run += 1
        joined = events.NodeJoined(
            node_id="node-1",
            incarnation=f"other-{self.run}",
            num_gpus=3,
            device="cpu",
            at_s=self.node.now_s,
        )
        self.node.ledger(joined)

    # -- this node

    def all_start(self, choice: int) -> None:
        """All but joining workers and workers that lack a peer on this node."""
        for worker in list(self.node.processes):
            if worker in self.node.processes and self._may_begin(self.node.state.workers[worker]):
                self.node.note(WorkerReported(worker=worker, message=Started(iteration=3)))

    def _may_begin(self, worker: WorkerRecord) -> bool:
        job = self.node.state.pool.live_jobs.get(worker.id.job_id)
        if job is None or job.generation != worker.id.generation or worker.trains or worker.is_joining:
            return False
        here = [rank for rank, gpu in enumerate(job.gpus) if gpu.node_id == "node-0"]
        return all(WorkerId(job.job_id, job.generation, rank) in self.node.processes for rank in here)

    def workers_switch(self, choice: int) -> None:
        """All workers in the rendezvous of a job switch, one after the other; or the first of them dies."""
        for job in _one([job for job in self.jobs if self._all_arrived(job)], choice // 6):
            if choice % 2 and job.gpus[0].node_id == "node-1":
                self._start_of_node_1(job)
            for index, worker in enumerate(self._in_rendezvous(job)):
                if worker.id not in self.node.processes:
                    continue
                if index == 0 and choice % 6 == 0:
                    self._end([worker.id], signal=9)
                else:
                    self._switches(worker)
            if job.gpus[0].node_id == "node-1":
                self._start_of_node_1(job)

    def _in_rendezvous(self, job: Job) -> list[WorkerRecord]:
        workers = self.node.state.workers_of(job.job_id)
        return [worker for worker in workers if worker.runs and worker.newest_generation == job.generation]

    def _all_arrived(self, job: Job) -> bool:
        """This node's workers are in the rendezvous of a job that switches; those of node-1 always are."""
        if not job.is_switching or job.has_outdated_spec or job.previous_generation is None:
            return False
        here = {gpu for gpu in (*job.gpus, *job.previous_generation.gpus) if gpu.node_id == "node-0"}
        return len(self._in_rendezvous(job)) == len(here)

    def _switches(self, worker: WorkerRecord) -> None:
        if worker.switch is None:
            self.node.note(WorkerReported(worker=worker.id, message=Started(iteration=5, resize=TIMELINE)))
        elif worker.target is None:
            self.node.note(WorkerEnded(worker=worker.id, exit_code=ExitCode.DONE))
        else:
            _, generation, rank = worker.target
            switched = Switched(generation=generation, rank=rank, iteration=5, resize=TIMELINE)
            self.node.note(WorkerReported(worker=worker.id, message=switched))

    def _start_of_node_1(self, job: Job) -> None:
        started = events.GenerationStarted(
            job_id=job.job_id,
            generation=job.generation,
            num_gpus=len(job.gpus),
            iteration=5,
            resize=TIMELINE,
            at_s=self.node.now_s,
        )
        self.node.ledger(started)

    def worker_reports(self, choice: int) -> None:
        for worker in _one(self.node.processes, choice // len(REPORTS)):
            report = REPORTS[choice % len(REPORTS)]
            if not isinstance(report, Profiled) or self.node.state.workers[worker].purpose == "profile":
                self.node.note(WorkerReported(worker=worker, message=report))

    def worker_ends(self, choice: int) -> None:
        exit_code, signal = ENDS[choice % len(ENDS)]
        for worker in _one(self.node.processes, choice // len(ENDS)):
            self.node.note(WorkerEnded(worker=worker, exit_code=exit_code, signal=signal))

    def time_passes(self, choice: int) -> None:
        self.node.at(self.node.now_s + (0.1, 1.0, FailureTimeouts().propagation_s, 10.0)[choice % 4])

    def contact_is_lost(self, choice: int) -> None:
        self.node.note(ContactLost(silence_s=1.5))
        self._end(self.node.processes, signal=9)

    def contact_is_restored(self, choice: int) -> None:
        self.node.note(ContactRestored())

    def node_is_counted_as_lost(self, choice: int) -> None:
        if self.node.state.membership is PoolMembership.MEMBER:
            lost = events.NodeLost(
                node_id="node-0",
                incarnation=self.node.state.incarnation,
                reason="silent",
                at_s=self.node.now_s,
            )
            self.node.ledger(lost)

    def executor_restarts(self, choice: int) -> None:
        self.run += 1
        now_s = self.node.now_s
        self.node = StrictNode(self.node.state.pool, run_id=f"run-{self.run}")
        self.node.at(now_s)

    def requested_ends_happen(self, choice: int) -> None:
        """Killed workers end; on even choices also those that were sent a stop."""
        running = self.node.state.running
        ending = [w.id for w in running if w.kill_requested or (choice % 2 == 0 and w.is_ending)]
        self._end(ending, code=ExitCode.DONE)

    def _end(self, workers: Iterable[WorkerId], *, code: int | None = None, signal: int | None = None) -> None:
        for worker in list(workers):
            self.node.note(WorkerEnded(worker=worker, exit_code=code, signal=signal))

    # -- and then nothing fails any more

    def calm_down(self) -> None:
        self.node.note(ContactRestored())
        for turn in range(12):
            self.requested_ends_happen(turn)
            self.other_node_reports(turn)
            self.node.at(self.node.now_s + 20.0)
            for job in self.jobs:
                self._lose_peers(job)
            for job in self.jobs:
                if job.broken and job.gpus:
                    self.node.place_on(job.gpus, job.job_id)
            self.other_node_listens(turn)
            self.all_start(turn)
            for _ in self.jobs:
                self.workers_switch(1)

    def _lose_peers(self, job: Job) -> None:
        """A generation that lacks a worker ends as a whole, on both nodes."""
        generations = {job.generation, job.training_generation}
        workers = [w for w in self.node.state.workers_of(job.job_id) if generations & set(w.generations)]
        if job.broken or self.has_measured(job) or all(worker.runs for worker in workers):
            return
        self._end((w.id for w in workers if w.runs), code=ExitCode.PEER_LOST)
        if "node-1" in job.nodes:
            self._crash_on_node_1(job)

    def has_measured(self, job: Job) -> bool:
        """Its profiling run is over: the rest of its workers may run or not."""
        rank0 = self.node.state.workers.get(WorkerId(job.job_id, job.generation, 0))
        return rank0 is not None and isinstance(rank0.outcome, Profiled)


def _one(things: Iterable[Any], choice: int) -> list[Any]:
    """One of them, or none if there is none."""
    ordered = sorted(things) if not isinstance(things, list) else things
    return [ordered[choice % len(ordered)]] if ordered else []


Step = Callable[[Pool, int], None]
OFTEN: tuple[Step, ...] = (
    Pool.place,
    Pool.resize,
    Pool.shrink_to_survivors,
    Pool.all_start,
    Pool.workers_switch,
    Pool.requested_ends_happen,
    Pool.other_node_reports,
    Pool.worker_reports,
    Pool.worker_ends,
    Pool.time_passes,
)
SELDOM: tuple[Step, ...] = (
    Pool.admit_after_profile,
    Pool.cancel,
    Pool.crash_elsewhere,
    Pool.other_node_listens,
    Pool.other_node_restarts,
    Pool.contact_is_lost,
    Pool.contact_is_restored,
    Pool.node_is_counted_as_lost,
    Pool.executor_restarts,
)
STEPS = st.tuples(st.sampled_from((*OFTEN * 4, *SELDOM)), st.integers(0, 10_000))
HISTORIES = st.lists(STEPS, min_size=5, max_size=60)


def played(profiled: set[str], stop_free: bool, history: list[tuple[Step, int]]) -> Pool:
    pool = Pool(profiled, stop_free)
    for step, choice in history:
        step(pool, choice)
        assert {worker.id for worker in pool.node.state.running} == set(pool.node.processes)
    return pool


@examples(150)
@given(profiled=st.sets(st.sampled_from(JOBS), max_size=2), stop_free=st.booleans(), history=HISTORIES)
def test_the_fence_holds_at_every_step_and_without_failures_the_newest_placement_runs(
    profiled: set[str], stop_free: bool, history: list[tuple[Step, int]]
) -> None:
    pool = played(profiled, stop_free, history)
    pool.calm_down()
    state = pool.node.state
    assert state.membership is PoolMembership.MEMBER
    for job in (*state.pool.live_jobs.values(), *state.pool.ended_jobs.values()):
        assert "node-0" not in {stopping.node_id for stopping in job.stopping}, "a stop was never reported"
    training = [job for job in pool.jobs if not pool.has_measured(job)]
    wanted = {
        WorkerId(job.job_id, job.generation, rank): gpu.gpu_index
        for job in training
        for rank, gpu in enumerate(job.gpus)
        if gpu.node_id == "node-0"
    }
    job_ids = {job.job_id for job in training}
    assert {w: gpu for w, gpu in pool.node.processes.items() if w.job_id in job_ids} == wanted
