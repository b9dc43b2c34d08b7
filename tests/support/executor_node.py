"""Steps the executor's policy of node-0 through a history, for unit tests: no bus, workers that a test controls.

The service host with this policy runs in the simulated pool (`simulator/pipeline/nodes.py`).
"""

from dataclasses import replace
from typing import Any

from elasticflow.services.executor.decisions.local_events_and_actions import (
    KillWorker,
    NodeClaimed,
    SendToWorker,
    StartWorker,
    WorkerEnded,
    WorkerId,
    WorkerReported,
)
from elasticflow.services.executor.decisions.policy import executor_policy
from elasticflow.services.executor.decisions.state import NodeSpecification, State
from elasticflow.shared.messages import events
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.measurements import ResizeTimeline
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.worker_protocol.from_worker import (
    ExitCode,
    RendezvousListening,
    Started,
    Switched,
)
from elasticflow.shared.messages.worker_protocol.to_worker import StopAtBoundary
from elasticflow.shared.runtime.service.ledger_encoding import split
from elasticflow.shared.state.pool import PoolState
from testbed.histories import NOW_S, gpus, spec

TIMELINE = ResizeTimeline(prepare_s=1.0, stop_s=0.01, first_step_s=0.1, bytes_moved=1000)
OTHER_NODE = events.NodeJoined(node_id="node-1", incarnation="x", num_gpus=4, device="cpu", at_s=NOW_S)
MAX_ROUNDS = 30  # more in a row without an external event would be a loop


def stops(*ranks: int, generation: int = 1, keeps_state: bool = True) -> list[SendToWorker]:
    """Stops of these workers of job a at a step boundary."""
    stop = StopAtBoundary(keeps_state=keeps_state)
    return [sent(stop, rank=rank, generation=generation) for rank in ranks]


def kills(*ranks: int, generation: int = 1) -> list[KillWorker]:
    """Kills of these workers of job a."""
    return [KillWorker(worker=WorkerId("a", generation, rank)) for rank in ranks]


def sent(message: Any, *, rank: int = 0, generation: int = 1) -> SendToWorker:
    """A message to a worker of job a."""
    return SendToWorker(worker=WorkerId("a", generation, rank), message=message)


def node_specification(run_id: str = "run", num_gpus: int = 4) -> NodeSpecification:
    return NodeSpecification(
        node_id="node-0",
        run_id=run_id,
        num_gpus=num_gpus,
        device="cpu",
        advertise_host="10.0.0.1",
        stop_grace_s=10.0,
    )


class ExecutorNode:
    """emitted: events, actions: both since the last `forget`; processes: GPU index of each running worker."""

    def __init__(self, pool: PoolState | None = None, *, run_id: str = "run", stores_artifacts: bool = False) -> None:
        self.policy = executor_policy(replace(node_specification(run_id), stores_artifacts=stores_artifacts))
        self.state: State = self.policy.start(pool or PoolState())
        self.now_s = NOW_S
        self.emitted: list[Any] = []
        self.actions: list[Any] = []
        self.processes: dict[WorkerId, int] = {}

    # -- external events

    def settle(self) -> "ExecutorNode":
        """Decide until a decision has no output."""
        for _ in range(MAX_ROUNDS):
            if not self._round():
                return self
        raise AssertionError(f"never settles: {self.emitted[-5:]} {self.actions[-5:]}")

    def ledger(self, *messages: Any) -> "ExecutorNode":
        for message in messages:
            self._fold(message)
        return self.settle()

    def note(self, *local_events: Any) -> "ExecutorNode":
        for event in local_events:
            if isinstance(event, WorkerEnded):
                del self.processes[event.worker]
            if isinstance(event, WorkerReported) and isinstance(event.message, Switched):
                target = WorkerId(event.worker.job_id, event.message.generation, event.message.rank)
                self.processes[target] = self.processes.pop(event.worker)
            self.state = self.policy.observe(self.state, event, self.now_s)
        return self.settle()

    def at(self, now_s: float) -> "ExecutorNode":
        self.now_s = now_s
        return self.settle()

    # -- shorthands

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

    def profile(self, job_id: str = "a", **changes: Any) -> "ExecutorNode":
        requested = events.ProfileRequested(
            job_id=job_id,
            tenant="lab",
            spec=spec(model_name="unseen", **changes),
            deadline_s=NOW_S + 100.0,
            at_s=self.now_s,
        )
        return self.ledger(requested)

    def place(self, *names: str, job_id: str = "a", virtual_nodes_by_rank: tuple[int, ...] = ()) -> "ExecutorNode":
        return self.place_on(gpus(*names), job_id, virtual_nodes_by_rank)

    def stop_free(self) -> "ExecutorNode":
        """From now on workers switch to the next generation without a stop if they can."""
        return self.ledger(events.PoolConfigured(config=PoolConfig(stop_free=True), at_s=self.now_s))

    def place_on(
        self, gpus: tuple[GpuId, ...], job_id: str, virtual_nodes_by_rank: tuple[int, ...] = ()
    ) -> "ExecutorNode":
        generation = self.state.pool.live_jobs[job_id].generation + 1
        placed = events.PlacedJob(
            job_id=job_id, generation=generation, gpus=gpus, virtual_nodes_by_rank=virtual_nodes_by_rank
        )
        return self.ledger(events.PlacementDecided(placements=(placed,), at_s=self.now_s))

    def reports(self, message: Any, *, job_id: str = "a", generation: int = 1, rank: int = 0) -> "ExecutorNode":
        return self.note(WorkerReported(worker=WorkerId(job_id, generation, rank), message=message))

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
        return self.note(WorkerEnded(worker=worker, exit_code=None if signal else code, signal=signal))

    def switches(
        self, *, generation: int = 1, rank: int = 0, to: int, iteration: int = 7, job_id: str = "a"
    ) -> "ExecutorNode":
        """A worker has switched to rank `to` of the next generation."""
        switched = Switched(generation=generation + 1, rank=to, iteration=iteration, resize=TIMELINE)
        return self.reports(switched, job_id=job_id, generation=generation, rank=rank)

    def training(self, num_gpus: int = 1, job_id: str = "a", **changes: Any) -> "ExecutorNode":
        """Add a job that trains on this node only, in generation 1, from iteration 0."""
        self.settle().admit(job_id, **changes).place(*(f"node-0:{index}" for index in range(num_gpus)), job_id=job_id)
        if num_gpus > 1:
            self.reports(RendezvousListening(generation=1, port=4000), job_id=job_id)
        for rank in range(num_gpus):
            self.reports(Started(iteration=0), job_id=job_id, rank=rank)
        return self.forget()

    def forget(self) -> "ExecutorNode":
        """Drop all outputs so far."""
        self.emitted.clear()
        self.actions.clear()
        return self

    def emitted_of(self, *types: type) -> list[Any]:
        return [event for event in self.emitted if isinstance(event, types)]

    @property
    def starts(self) -> list[StartWorker]:
        return [action for action in self.actions if isinstance(action, StartWorker)]

    # -- one step

    def _round(self) -> bool:
        claimed = NodeClaimed(incarnation=self.state.incarnation)  # its heartbeats are stored, here at once
        self.state = self.policy.observe(self.state, claimed, self.now_s)
        plan, emitted, actions = split(self.policy.decide(self.state, (), self.now_s))
        assert not plan
        for action in actions:
            self._act(action)
            self.state = self.policy.observe(self.state, action, self.now_s)
        for event in emitted:
            self._fold(event)
        self.emitted += emitted
        self.actions += actions
        return bool(emitted) or any(isinstance(action, StartWorker) for action in actions)

    def _act(self, action: Any) -> None:
        if isinstance(action, StartWorker):
            gpu_index = action.assignment.gpu_index
            assert action.worker not in self.processes, f"{action.worker} twice"
            assert gpu_index not in self.processes.values(), f"GPU {gpu_index} is occupied"
            before = self.state.pool.live_jobs[action.worker.job_id].previous_generation
            allowed, ending = {action.worker.generation}, set[WorkerId]()
            if before is not None:  # joining workers of a generation that never trained cannot interfere
                allowed.add(before.generation)
                ending = {worker.id for worker in self.state.running if worker.is_ending}
            generations = {w.generation for w in self.processes if w.job_id == action.worker.job_id and w not in ending}
            assert generations <= allowed, f"beside {generations}: {action.worker}"
            self.processes[action.worker] = gpu_index
        if isinstance(action, SendToWorker | KillWorker):
            assert action.worker in self.processes, f"no process for {action}"

    def _fold(self, message: Any) -> None:
        before = self.state.pool
        self.state = self.policy.evolve(self.state, message, before.sequence + 1)

    def unchanged_by(self, event: Any) -> bool:
        """The ledger holds this event, or its effect, already."""
        pool = self.state.pool
        after = self.policy.evolve(self.state, event, pool.sequence + 1).pool
        sequences = {"sequence": pool.sequence, "scheduling_event_sequence": pool.scheduling_event_sequence}
        return replace(after, **sequences) == pool


def kinds(outputs: list[object]) -> list[type]:
    return [type(output) for output in outputs]


def lost(node: ExecutorNode) -> events.NodeLost:
    return events.NodeLost(node_id="node-0", incarnation=node.state.incarnation, reason="silent", at_s=node.now_s)
