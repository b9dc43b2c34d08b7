"""The executor's policy of node-0, hosted as the real host does it, with processes that do what a test says."""

from dataclasses import replace
from typing import Any

from services.executor.model import Offer, State
from services.executor.notes import Ended, KillWorkers, Said, StartWorker, StopWorkers, WorkerId
from services.executor.policy import executor_policy
from shared.messages import events
from shared.messages.cluster import GpuId, PoolConfig
from shared.messages.from_worker import ExitCode, RendezvousListening, Started, Switched
from shared.messages.pool_state import PoolState
from shared.messages.resize_timeline import ResizeTimeline
from shared.runtime.outbox import split
from tests.histories import NOW_S, gpus, spec

STOP_A1 = StopWorkers(job_id="a", generation=1)
KILL_A1 = KillWorkers(job_id="a", generation=1)
TIMELINE = ResizeTimeline(prepare_s=1.0, stop_s=0.01, first_step_s=0.1, bytes_moved=1000)
OTHER_NODE = events.NodeJoined(node_id="node-1", incarnation="x", num_gpus=4, device="cpu", at_s=NOW_S)
MAX_ROUNDS = 30  # more in a row without news from outside would be a loop


def offer(run_id: str = "run", num_gpus: int = 4) -> Offer:
    return Offer(
        node_id="node-0",
        run_id=run_id,
        num_gpus=num_gpus,
        device="cpu",
        advertise_host="10.0.0.1",
        stop_grace_s=10.0,
    )


class ExecutorNode:
    """told: facts, acted: actions, both since the start; processes: what runs, by worker, on which GPU."""

    def __init__(self, pool: PoolState | None = None, *, run_id: str = "run") -> None:
        self.policy = executor_policy(offer(run_id))
        self.state: State = self.policy.start(pool or PoolState())
        self.now_s = NOW_S
        self.told: list[Any] = []
        self.acted: list[Any] = []
        self.processes: dict[WorkerId, int] = {}

    # -- what a test does to it

    def settle(self) -> "ExecutorNode":
        """Decide until there is nothing left to decide."""
        for _ in range(MAX_ROUNDS):
            if not self._round():
                return self
        raise AssertionError(f"never settles: {self.told[-5:]} {self.acted[-5:]}")

    def ledger(self, *messages: Any) -> "ExecutorNode":
        for message in messages:
            self._fold(message)
        return self.settle()

    def note(self, *notes: Any) -> "ExecutorNode":
        for note in notes:
            if isinstance(note, Ended):
                del self.processes[note.worker]
            if isinstance(note, Said) and isinstance(note.message, Switched):
                member = WorkerId(note.worker.job_id, note.message.generation, note.message.rank)
                self.processes[member] = self.processes.pop(note.worker)
            self.state = self.policy.observe(self.state, note, self.now_s)
        return self.settle()

    def at(self, now_s: float) -> "ExecutorNode":
        self.now_s = now_s
        return self.settle()

    # -- in short

    def admit(self, job_id: str = "a", **changes: Any) -> "ExecutorNode":
        admitted = events.JobAdmitted(
            job_id=job_id,
            tenant="lab",
            spec=spec(**changes),
            deadline_s=NOW_S + 100.0,
            minimum_satisfactory_share=(),
            gpu_seconds=0.0,
            at_s=self.now_s,
        )
        return self.ledger(admitted)

    def profile(self, job_id: str = "a") -> "ExecutorNode":
        asked = events.ProfileRequested(
            job_id=job_id,
            tenant="lab",
            spec=spec(model_name="unseen"),
            deadline_s=NOW_S + 100.0,
            at_s=self.now_s,
        )
        return self.ledger(asked)

    def place(self, *names: str, job_id: str = "a") -> "ExecutorNode":
        return self.place_on(gpus(*names), job_id)

    def stop_free(self) -> "ExecutorNode":
        """From here on workers go over to the next generation where they can."""
        return self.ledger(events.PoolConfigured(config=PoolConfig(stop_free=True), at_s=self.now_s))

    def place_on(self, gpus: tuple[GpuId, ...], job_id: str) -> "ExecutorNode":
        job = self.state.pool.live_jobs[job_id]
        placed = events.PlacedJob(job_id=job_id, generation=job.generation + 1, gpus=gpus)
        return self.ledger(events.PlacementDecided(placements=(placed,), at_s=self.now_s))

    def says(self, message: Any, *, job_id: str = "a", generation: int = 1, rank: int = 0) -> "ExecutorNode":
        return self.note(Said(worker=WorkerId(job_id, generation, rank), message=message))

    def ends(
        self,
        *,
        job_id: str = "a",
        generation: int = 1,
        rank: int = 0,
        code: int | None = ExitCode.DONE,
        signal: int | None = None,
    ) -> "ExecutorNode":
        worker = WorkerId(job_id, generation, rank)
        return self.note(Ended(worker=worker, exit_code=None if signal else code, signal=signal))

    def switches(
        self, *, generation: int = 1, rank: int = 0, to: int, iteration: int = 7, job_id: str = "a"
    ) -> "ExecutorNode":
        """A worker has gone over to rank `to` of the next generation."""
        switched = Switched(generation=generation + 1, rank=to, iteration=iteration, resize=TIMELINE)
        return self.says(switched, job_id=job_id, generation=generation, rank=rank)

    def training(self, num_gpus: int = 1, job_id: str = "a") -> "ExecutorNode":
        """A job that trains here, alone, in its first generation, from iteration 0."""
        self.settle().admit(job_id).place(*(f"node-0:{index}" for index in range(num_gpus)), job_id=job_id)
        if num_gpus > 1:
            self.says(RendezvousListening(generation=1, port=4000), job_id=job_id)
        for rank in range(num_gpus):
            self.says(Started(iteration=0), job_id=job_id, rank=rank)
        return self.forget()

    def forget(self) -> "ExecutorNode":
        """Look only at what follows."""
        self.told.clear()
        self.acted.clear()
        return self

    def told_of(self, *types: type) -> list[Any]:
        return [fact for fact in self.told if isinstance(fact, types)]

    # -- the host

    def _round(self) -> bool:
        plan, facts, actions = split(self.policy.decide(self.state, (), self.now_s))
        assert not plan
        for action in actions:
            self._act(action)
            self.state = self.policy.observe(self.state, action, self.now_s)
        for fact in facts:
            self._fold(fact)
        self.told += facts
        self.acted += actions
        return bool(facts) or any(isinstance(action, StartWorker) for action in actions)

    def _act(self, action: Any) -> None:
        if isinstance(action, StartWorker):
            assert action.worker not in self.processes, f"{action.worker} twice"
            assert action.gpu_index not in self.processes.values(), f"GPU {action.gpu_index} is occupied"
            before = self.state.pool.live_jobs[action.worker.job_id].predecessor
            allowed, ending = {action.worker.generation}, set[WorkerId]()
            if before is not None:  # newcomers of a generation that never trained are no danger to it
                allowed.add(before.generation)
                ending = {worker.id for worker in self.state.running if worker.end_was_asked}
            generations = {
                w.generation for w in self.processes if w.job_id == action.worker.job_id and w not in ending
            }
            assert generations <= allowed, f"beside {generations}: {action.worker}"
            self.processes[action.worker] = action.gpu_index
        if isinstance(action, StopWorkers | KillWorkers):
            running = {worker[:2] for worker in self.processes}
            assert (action.job_id, action.generation) in running, f"nobody to hear {action}"

    def _fold(self, message: Any) -> None:
        before = self.state.pool
        self.state = self.policy.evolve(self.state, message, before.sequence + 1)

    def unchanged_by(self, fact: Any) -> bool:
        """The ledger says that already."""
        pool = self.state.pool
        after = self.policy.evolve(self.state, fact, pool.sequence + 1).pool
        sequences = {"sequence": pool.sequence, "scheduling_event_sequence": pool.scheduling_event_sequence}
        return replace(after, **sequences) == pool


def kinds(outputs: list[object]) -> list[type]:
    return [type(output) for output in outputs]


def lost(node: ExecutorNode) -> events.NodeLost:
    return events.NodeLost(
        node_id="node-0", incarnation=node.state.incarnation, reason="silent", at_s=node.now_s
    )
