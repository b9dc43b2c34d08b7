"""Jobs on the node of `tests/training`: their switches, their ends, and what they have trained."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.engine.sensitive import digest
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.messages.worker_protocol.from_worker import (
    ExitCode,
    Finished,
    Interrupted,
    Progressed,
    Started,
    Switched,
)

LAST_GENERATION = 5  # of `train_disturbed`
UNEVEN = 21  # samples over 8 virtual nodes


class Trained(NamedTuple):
    """bits: a digest of the job's final state."""

    bits: str
    metrics: dict[str, float]


async def train(node, spec, *, job_id: str = "", **launch) -> Trained:
    """Run one generation to its end. job_id: by default a new one."""
    return await end_of(node, await node.launch(spec, job_id=job_id or node.new_job_id(), **launch))


async def end_of(node, workers) -> Trained:
    """Wait until the job has ended and its workers have exited as planned."""
    finished = await workers.first(Finished)
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}
    job_id = workers.workers[0].assignment.job_id
    return Trained(digest(checkpoint_of(node, job_id)), dict(finished.metrics))


async def switch(node, workers, *changes, **cut):
    """One generation after another, each as soon as all workers of the last one train. cut: into virtual nodes."""
    for members in changes:
        workers = await node.switch_generation(workers, members, **cut)
        await all_switched(workers, members)
    return workers


async def all_switched(workers, members) -> Started | Switched:
    """The event of one worker, once all workers have switched."""
    switched_events = [
        await workers.first(Started if known is None else Switched, rank) for rank, known in enumerate(members)
    ]
    assert len({switched.iteration for switched in switched_events}) == 1
    return switched_events[0]


def checkpoint_of(node, job_id: str) -> dict[str, Any]:
    """The newest."""
    state = CheckpointStore(node.checkpoints_of(job_id), generation=1000).newest()
    assert state is not None
    return state


def weights_of(node, job_id: str) -> torch.Tensor:
    return torch.cat([value.flatten().float() for value in checkpoint_of(node, job_id)["model"].values()])


def files_of(node, job_id: str) -> Path:
    """The working directory of a script."""
    return node.checkpoints_of(job_id) / "files"


def slow_down_script(node, job_id: str) -> Path:
    """A file; while it exists, the script's job does not end."""
    files_of(node, job_id).mkdir(parents=True)
    file = files_of(node, job_id) / "slow_down"
    file.touch()
    return file


async def train_disturbed(node, spec, job_id: str):
    """Train a script while workers join, leave and die, and the job stops. Return the three workers that end it."""
    slow_down = slow_down_script(node, job_id)
    workers = await node.launch(spec, job_id=job_id, num_workers=2)
    await workers.first(Progressed)
    workers = await switch(node, workers, [0, 1, None], [2, 0])
    workers.workers[1].kill()
    await workers.first(Interrupted, 0)
    workers = await node.switch_generation(workers, [0], lost=[1])
    await all_switched(workers, [0])
    workers.stop()
    await workers.ended()
    workers = await node.launch(spec, job_id=job_id, num_workers=3, generation=LAST_GENERATION)
    await workers.first(Progressed)
    slow_down.unlink()
    return workers


def stateful(spec_of, *, until: int = 20, **hyperparameters: Any):
    return spec_of("Stateful", global_batch_size=UNEVEN, max_iterations=until, hyperparameters=hyperparameters)


def script(spec_of, *words: str, name: str = "scripts", entry: str = "__main__", until: int = 40, **fields):
    settings = {str(number): word for number, word in enumerate(words, start=1)}
    return spec_of(f"{name}:{entry}", max_iterations=until, hyperparameters=settings, **fields)
