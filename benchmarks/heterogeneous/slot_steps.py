"""Steps of a job on CPU slots of given shares, and its profile there, measured as the profiling runs of a pool are."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.engine.elastic import Engine
from benchmarks.engine.models import Trained
from elasticflow.services.executor.processes.launcher import Exited
from elasticflow.shared.messages.events import NodeJoined, ProfileCompleted, ThroughputMeasured
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.worker_protocol.from_worker import Profiled
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment
from elasticflow.shared.runtime.process.local_hardware import cpu_slot_type
from elasticflow.shared.state.fold.ledger_fold import evolve
from elasticflow.shared.state.gpu_types import spec_on
from elasticflow.shared.state.pool import PoolState

_WORKERS_OF_A_CURVE = (1, 2, 4)
_SLOTS = 16  # of each type, in the pool of the profile


async def profiled(
    engine: Engine, assignment: Assignment, shares: Sequence[float], counts: tuple[int, ...] = ()
) -> Profiled:
    """A profiling run on slots of these shares of a core. counts: virtual nodes by rank; empty: as even as possible."""
    plan = replace(assignment.plan, world_size=len(shares), virtual_nodes_by_rank=counts)
    engine_run = replace(assignment, plan=plan)
    workers = [
        await engine.launcher.launch(replace(engine_run, rank=rank, gpu_index=rank, cpu_share=share))
        for rank, share in enumerate(shares)
    ]
    measured = await engine.receive(Profiled, workers[0], rendezvous=workers)
    for worker in workers:
        await engine.receive(Exited, worker)
    return measured


async def step_s(
    engine: Engine, model: type[Trained], shares: Sequence[float], counts: tuple[int, ...], *, iterations: int
) -> float:
    """The median of so many steps of a new job. counts: as in `profiled`."""
    run = replace(profiling_run(engine, model, iterations=iterations), measures_step_times=False)
    return 1 / (await profiled(engine, run, shares, counts)).iterations_per_s


def profiling_run(engine: Engine, model: type[Trained], *, iterations: int) -> Assignment:
    """The profiling run of a new job; each measurement takes `iterations` steps."""
    return replace(
        engine.assignment(model, million_parameters=1),
        purpose="profile",
        profile_min_s=1e6,
        profile_max_iterations=iterations,
        measures_step_times=True,
    )


async def profile_on(engine: Engine, model: type[Trained], shares: Sequence[float], *, iterations: int) -> PoolState:
    """A pool with slots of each share, on which profiling runs have measured the model. The first share is the first
    type."""
    state, spec = PoolState(), submitted(engine, model)
    for share in shares:
        name = cpu_slot_type(share)
        joined = NodeJoined(
            node_id=name.replace(".", "-"), incarnation="a", num_gpus=_SLOTS, device="cpu", gpu_type=name, at_s=0.0
        )
        state = _folded(state, joined)
    for share in shares:
        key, rates = spec_on(state, spec, cpu_slot_type(share)).measured_key, dict[int, float]()
        for num_workers in _WORKERS_OF_A_CURVE:
            run = profiling_run(engine, model, iterations=iterations)
            measured = await profiled(engine, run, (share,) * num_workers)
            rates[num_workers] = measured.iterations_per_s
            state = _folded(state, _throughput(run, key, num_workers, measured))
        state = _folded(state, ProfileCompleted(profile_key=key, iterations_per_s=rates, at_s=1.0))
    return state


def submitted(engine: Engine, model: type[Trained]) -> JobSpec:
    """The spec whose profile `profile_on` measures."""
    return engine.assignment(model, million_parameters=1).spec


def _throughput(run: Assignment, key: str, num_workers: int, measured: Profiled) -> ThroughputMeasured:
    return ThroughputMeasured(
        profile_key=key,
        num_gpus=num_workers,
        iterations_per_s=measured.iterations_per_s,
        dataset_size=measured.dataset_size,
        single_gpu=measured.single_gpu,
        one_virtual_node_s=measured.one_virtual_node_s,
        job_id=run.job_id,
        generation=1,
        source="profile",
        at_s=float(num_workers),
    )


def _folded(state: PoolState, event: NodeJoined | ThroughputMeasured | ProfileCompleted) -> PoolState:
    return evolve(state, event, state.sequence + 1)
