"""Worker processes of jobs without an executor: a launcher, and what its workers report."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

from elasticflow.services.executor.processes.launcher import Exited, Launcher, WorkerEvent, WorkerHandle
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.worker_protocol.from_worker import RendezvousListening, Switched
from elasticflow.shared.messages.worker_protocol.to_worker import (
    Assignment,
    GenerationPlan,
    JoinRendezvous,
    PrepareSwitch,
    StopAtBoundary,
)

WAIT_S = 240.0  # for expected events; far above the usual time, also of a busy machine
PLANNED = {each.name for each in fields(GenerationPlan)} - {"generation", "world_size"}
T = TypeVar("T")
Device = Literal["cpu", "cuda"]


class Generation:
    """The workers of one generation, and their events so far. leaving: workers of the previous generation."""

    def __init__(self, ranks: Sequence[int], leaving: Sequence[WorkerHandle] = ()) -> None:
        self.workers: dict[int, WorkerHandle] = {}
        self.leaving = leaving
        self.events: list[tuple[int, WorkerEvent]] = []
        self._ranks = ranks
        self._new_event = asyncio.Event()

    def record(self, rank: int, event: WorkerEvent) -> None:
        self.events.append((rank, event))
        if isinstance(event, RendezvousListening):
            self.pass_on_rendezvous()
        self._new_event.set()

    def pass_on_rendezvous(self) -> None:
        """Send the address to all workers so far: rank 0 may listen before the last one is launched."""
        for listening in self.all_of(RendezvousListening):
            others = [worker for rank, worker in self.workers.items() if rank > 0]
            for worker in (*others, *self.leaving):
                address = f"127.0.0.1:{listening.port}"
                worker.send(JoinRendezvous(generation=listening.generation, address=address))

    def all_of(self, kind: type[T], rank: int | None = None) -> list[T]:
        return [event for r, event in self.events if isinstance(event, kind) and rank in (None, r)]

    async def first(self, kind: type[T], rank: int | None = None) -> T:
        """Wait for the first event of this kind."""
        async with asyncio.timeout(WAIT_S):
            while not (found := self.all_of(kind, rank)):
                assert len(self.all_of(Exited)) < len(self._ranks), f"no {kind.__name__}: {self.events}"
                await self.next_event()
        return found[0]

    async def next_event(self) -> None:
        self._new_event.clear()
        async with asyncio.timeout(WAIT_S):
            await self._new_event.wait()

    async def ended(self) -> dict[int, Exited]:
        """Wait until all workers have ended; their ends, by rank."""
        for rank in self._ranks:
            await self.first(Exited, rank)
        return {rank: event for rank, event in self.events if isinstance(event, Exited)}

    def stop(self, *, keeps_state: bool = True) -> None:
        for worker in self.workers.values():
            worker.send(StopAtBoundary(keeps_state=keeps_state))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineup:
    """The ranks to start (by default all), and what differs by rank. devices: the first GPU is the node's first."""

    ranks: Sequence[int] | None = None
    spec_by_rank: Mapping[int, JobSpec] = field(default_factory=dict[int, JobSpec])
    devices: Sequence[Device] = ()


ALL_ALIKE = Lineup()


class Node:
    """A launcher, and jobs whose code is in `testbed/user_code`. launching: further settings of the launcher."""

    def __init__(self, folder: Path, **launching: Any) -> None:
        self.folder = folder
        self.launcher = Launcher(data_dir=folder, node_id="test-node", on_event=self._record, **launching)
        self._generations: dict[tuple[str, int], Generation] = {}
        self._job_numbers = count()

    def new_job_id(self) -> str:
        return f"job-{next(self._job_numbers)}"

    def checkpoints_of(self, job_id: str) -> Path:
        return self.folder / "checkpoints" / job_id

    def log_of(self, job_id: str, *, generation: int = 1, rank: int = 0) -> str:
        return self.launcher.log_file(job_id, generation, rank).read_text()

    async def launch(
        self,
        spec: JobSpec,
        *,
        job_id: str,
        num_workers: int = 1,
        generation: int = 1,
        lineup: Lineup = ALL_ALIKE,
        **more: Any,
    ) -> Generation:
        """more: of the assignment, or of its generation plan."""
        ranks, devices = range(num_workers) if lineup.ranks is None else lineup.ranks, lineup.devices
        workers = self._generations[job_id, generation] = Generation(ranks)
        planned = {name: more.pop(name) for name in PLANNED & more.keys()}
        assignment = Assignment(
            job_id=job_id,
            plan=GenerationPlan(generation=generation, world_size=num_workers, **planned),
            rank=0,
            spec=spec,
            checkpoint_dir=str(self.checkpoints_of(job_id)),
            **{"code_path": str(Path(__file__).parent / "user_code"), **more},
        )
        for rank in ranks:
            own = replace(
                assignment,
                rank=rank,
                gpu_index=devices[:rank].count("cuda") if devices else assignment.gpu_index + rank,
                device=devices[rank] if devices else assignment.device,
                spec=lineup.spec_by_rank.get(rank, spec),
            )
            workers.workers[rank] = await self.launcher.launch(own)
        workers.pass_on_rendezvous()
        return workers

    async def switch_generation(
        self,
        before: Generation,
        members: Sequence[int | None],
        *,
        generation: int | None = None,
        lost: Sequence[int] = (),
        device: Device | None = None,
        **planned: Any,
    ) -> Generation:
        """The generation after `before`, without a stop: rank r was members[r], or is new where that is None. device:
        of a new worker, if it differs. planned: of the generation, beside its size."""
        some = next(iter(before.workers.values())).assignment
        generation = generation or some.plan.generation + 1
        leaving = [rank for rank in sorted(before.workers) if rank not in (*members, *lost)]
        size, by_rank = len(members), {}
        for rendezvous_rank, rank in enumerate((*members, *leaving)):
            by_rank[rendezvous_rank] = None if rank is None else before.workers[rank]
        after = Generation(range(size), [by_rank[r] for r in range(size, len(by_rank))])
        self._generations[some.job_id, generation] = after
        plan = GenerationPlan(generation=generation, world_size=size, rendezvous_size=len(by_rank), **planned)
        for rendezvous_rank, worker in by_rank.items():
            if worker is not None:
                worker.send(PrepareSwitch(plan=plan, rendezvous_rank=rendezvous_rank))
            else:
                joining = replace(some, plan=plan, rank=rendezvous_rank, device=device or some.device)
                worker = await self.launcher.launch(joining)
            if rendezvous_rank < size:
                after.workers[rendezvous_rank] = worker
        after.pass_on_rendezvous()
        return after

    def _record(self, worker: WorkerHandle, event: WorkerEvent) -> None:
        if isinstance(event, Switched):
            worker.assignment = replace(
                worker.assignment, plan=replace(worker.assignment.plan, generation=event.generation), rank=event.rank
            )
        about = worker.assignment
        generation = event.generation if isinstance(event, RendezvousListening) else about.plan.generation
        self._generations[about.job_id, generation].record(about.rank, event)


def job_spec(name: str, **fields: Any) -> JobSpec:
    defaults: dict[str, Any] = {"global_batch_size": 16, "max_iterations": 10, "deadline_in_s": 600.0}
    path = name if ":" in name else f"training_functions:{name}"
    return JobSpec(training_function=path, **defaults | fields)
