"""Whatever is placed, cancelled, crashes, stops or gets lost: the fence holds, and the newest placement comes true.

The ledger of a pool of two nodes is played at random; node-0 is the executor under test, node-1 is played too.
"""

from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.executor.model import Membership, Worker
from services.executor.notes import (
    ContactLost,
    ContactRestored,
    Ended,
    KillWorker,
    KillWorkers,
    Said,
    StartWorker,
    StopWorkers,
    WorkerId,
)
from services.placement.regrouping import regrouped
from shared.messages import events
from shared.messages.cluster import GpuId
from shared.messages.detection import DetectionTimes
from shared.messages.from_worker import (
    Checkpointed,
    ExitCode,
    Failed,
    Finished,
    NotCheckpointed,
    Profiled,
    RendezvousListening,
    Started,
    Switched,
)
from shared.messages.job_state import Job
from tests.examples import examples
from tests.executor_node import TIMELINE, ExecutorNode

JOBS = ("a", "b", "c", "d", "e")
GPUS = tuple(GpuId(node_id, index) for node_id in ("node-0", "node-1") for index in range(3))
WORDS = (
    RendezvousListening(generation=1, port=4000),
    Checkpointed(iteration=9),
    Checkpointed(iteration=9, request=3, num_bytes=10, file="a.ckpt"),
    NotCheckpointed(request=3, reason="full"),
    Profiled(iterations_per_s=1.0, dataset_size=10),
    Finished(iteration=100, condition="max_iterations"),
    Failed(error="ValueError"),
)
ENDS = (*((code, None) for code in (*ExitCode, 1)), (None, 9))


class StrictNode(ExecutorNode):
    """Asserts what must hold at each single step (the base class: one generation of a job, one worker of a GPU)."""

    telling = False

    def _round(self) -> bool:
        self.telling = True
        try:
            return super()._round()
        finally:
            self.telling = False

    def _act(self, action: Any) -> None:
        if isinstance(action, StartWorker):
            job = self.state.pool.live_jobs[action.worker.job_id]
            assert not job.broken, "starts what cannot train"
            assert job.predecessor is not None or job.stopping == (), "starts before the older ones are gone"
        super()._act(action)

    def _fold(self, message: Any) -> None:
        if self.telling:
            assert not self.unchanged_by(message), f"told in vain: {message}"
        if self.telling and isinstance(message, events.WorkersStopped):
            assert (message.job_id, message.generation) not in {worker[:2] for worker in self.processes}
        if self.telling and isinstance(message, events.NodeJoined):
            assert not self.processes, "joins with workers of an earlier life"
        super()._fold(message)


class Pool:
    """What may happen around and on node-0. choice: any number, read as one of what there is to choose from."""

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
            self.everybody_trains(0)

    @property
    def jobs(self) -> list[Job]:
        return sorted(self.node.state.pool.live_jobs.values(), key=lambda job: job.job_id)

    # -- the rest of the pool

    def admit_after_profile(self, choice: int) -> None:
        for job in _one(self.jobs, choice):
            self.node.admit(job.job_id)

    def resize(self, choice: int) -> None:
        """As `place`, of one that trains, if there is one."""
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

    def regroup(self, choice: int) -> None:
        """As placement does it after a loss, sooner or later."""
        for placed in regrouped(self.node.state.pool):
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
                    events.RendezvousOpened(
                        job_id=job.job_id, generation=job.generation, address="10.0.0.2:1"
                    )
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

    def everybody_trains(self, choice: int) -> None:
        """But for newcomers, and for those that miss a worker of this node."""
        for worker in list(self.node.processes):
            if worker in self.node.processes and self._may_begin(self.node.state.workers[worker]):
                self.node.note(Said(worker=worker, message=Started(iteration=3)))

    def _may_begin(self, worker: Worker) -> bool:
        job = self.node.state.pool.live_jobs.get(worker.id.job_id)
        if job is None or job.generation != worker.id.generation or worker.trains or worker.joins:
            return False
        here = [rank for rank, gpu in enumerate(job.gpus) if gpu.node_id == "node-0"]
        return all(WorkerId(job.job_id, job.generation, rank) in self.node.processes for rank in here)

    def workers_go_over(self, choice: int) -> None:
        """All that are at a job's meeting, one after the other; or the first of them dies, when it just has."""
        for job in _one([job for job in self.jobs if self._all_have_come(job)], choice // 6):
            if choice % 2 and job.gpus[0].node_id == "node-1":
                self._start_of_node_1(job)
            for index, worker in enumerate(self._at_meeting(job)):
                if worker.id not in self.node.processes:
                    continue
                if index == 0 and choice % 6 == 0:
                    self._end([worker.id], signal=9)
                else:
                    self._goes_over(worker)
            if job.gpus[0].node_id == "node-1":
                self._start_of_node_1(job)

    def _at_meeting(self, job: Job) -> list[Worker]:
        meeting = (job.job_id, job.generation)
        return [w for w in self.node.state.workers_of(job.job_id) if w.runs and w.place[:2] == meeting]

    def _all_have_come(self, job: Job) -> bool:
        """Those of this node to the meeting of a job that is handed over; the others always have."""
        if not job.handed_over or job.outdated or job.predecessor is None:
            return False
        here = {gpu for gpu in (*job.gpus, *job.predecessor.gpus) if gpu.node_id == "node-0"}
        return len(self._at_meeting(job)) == len(here)

    def _goes_over(self, worker: Worker) -> None:
        _, generation, rank = worker.place
        if worker.place == worker.id:
            self.node.note(Said(worker=worker.id, message=Started(iteration=5, resize=TIMELINE)))
        elif worker.becomes is None:
            self.node.note(Ended(worker=worker.id, exit_code=ExitCode.DONE))
        else:
            switched = Switched(generation=generation, rank=rank, iteration=5, resize=TIMELINE)
            self.node.note(Said(worker=worker.id, message=switched))

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

    def worker_says(self, choice: int) -> None:
        for worker in _one(self.node.processes, choice // len(WORDS)):
            word = WORDS[choice % len(WORDS)]
            if not isinstance(word, Profiled) or self.node.state.workers[worker].purpose == "profile":
                self.node.note(Said(worker=worker, message=word))

    def worker_ends(self, choice: int) -> None:
        exit_code, signal = ENDS[choice % len(ENDS)]
        for worker in _one(self.node.processes, choice // len(ENDS)):
            self.node.note(Ended(worker=worker, exit_code=exit_code, signal=signal))

    def time_passes(self, choice: int) -> None:
        self.node.at(self.node.now_s + (0.1, 1.0, DetectionTimes().word_s, 10.0)[choice % 4])

    def contact_is_lost(self, choice: int) -> None:
        self.node.note(ContactLost(silence_s=1.5))
        self._end(self.node.processes, signal=9)

    def contact_is_restored(self, choice: int) -> None:
        self.node.note(ContactRestored())

    def node_is_counted_as_lost(self, choice: int) -> None:
        if self.node.state.membership is Membership.MEMBER:
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

    def asked_workers_end(self, choice: int) -> None:
        """Those that were killed; on even choices also those that were asked to stop."""
        kinds = (KillWorkers,) if choice % 2 else (KillWorkers, StopWorkers)
        asked = {(a.job_id, a.generation) for a in self.node.acted if isinstance(a, kinds)}
        alone = {a.worker for a in self.node.acted if isinstance(a, KillWorker)}
        self._end((w for w in self.node.processes if w[:2] in asked or w in alone), code=ExitCode.DONE)

    def _end(
        self, workers: Iterable[WorkerId], *, code: int | None = None, signal: int | None = None
    ) -> None:
        for worker in list(workers):
            self.node.note(Ended(worker=worker, exit_code=code, signal=signal))

    # -- and then everybody behaves

    def calm_down(self) -> None:
        self.node.note(ContactRestored())
        for turn in range(12):
            self.asked_workers_end(turn)
            self.other_node_reports(turn)
            self.node.at(self.node.now_s + 20.0)
            for job in self.jobs:
                self._lose_peers(job)
            for job in self.jobs:
                if job.broken and job.gpus:
                    self.node.place_on(job.gpus, job.job_id)
            self.other_node_listens(turn)
            self.everybody_trains(turn)
            for _ in self.jobs:
                self.workers_go_over(1)

    def _lose_peers(self, job: Job) -> None:
        """A generation that misses a worker ends as a whole, wherever its workers are."""
        generations = {job.generation, job.training_generation}
        workers = [w for w in self.node.state.workers_of(job.job_id) if generations & set(w.generations)]
        if job.broken or self.has_measured(job) or all(worker.runs for worker in workers):
            return
        self._end((w.id for w in workers if w.runs), code=ExitCode.PEER_LOST)
        if "node-1" in job.nodes:
            self._crash_on_node_1(job)

    def has_measured(self, job: Job) -> bool:
        """Its pre-run is over: what is left of it may run or not."""
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
    Pool.regroup,
    Pool.everybody_trains,
    Pool.workers_go_over,
    Pool.asked_workers_end,
    Pool.other_node_reports,
    Pool.worker_says,
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
def test_at_every_step_the_fence_holds_and_once_all_behave_nothing_is_owed(
    profiled: set[str], stop_free: bool, history: list[tuple[Step, int]]
) -> None:
    pool = played(profiled, stop_free, history)
    pool.calm_down()
    state = pool.node.state
    assert state.membership is Membership.MEMBER
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
