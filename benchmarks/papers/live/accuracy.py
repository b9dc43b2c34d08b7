"""Accuracies on 1 to 8 workers: the batch fixed by virtual nodes, and a naive one that shrinks (VirtualFlow)."""

import asyncio
from collections.abc import Mapping, Sequence

import torch

from benchmarks.engine.sensitive import digest
from benchmarks.engine.stage import Stage, stage
from benchmarks.papers.live.digits_jobs import NUM_VIRTUAL_NODES, NaiveDigits, NoisyDigits

_NUM_SAMPLES = 1500  # of the training set


def accuracy(
    *, seed: int, workers: Sequence[int], batch_size: int, epochs: int, learning_rate: float, wrong_labels: float
) -> Mapping[str, float]:
    """Percent at the end, by kind and number of workers; and the final states that differ from that of one worker.

    A naive worker keeps its batch, as its memory would demand: the global batch is its part of batch_size, times the
    number of workers. All train for as many epochs, at the learning rate of the whole batch.
    """
    settings = {"learning_rate": learning_rate, "wrong_labels": wrong_labels}

    async def measure() -> dict[str, float]:
        numbers, states = dict[str, float](), list[str]()
        async with stage() as there:
            for num_workers in workers:
                job = NoisyDigits().set_hyperparameter(global_batch_size=batch_size, **settings)
                numbers[f"virtualflow-{num_workers}"], state = await _trained(there, job, num_workers, seed, epochs)
                states.append(state)
                job = NaiveDigits().set_hyperparameter(
                    global_batch_size=num_workers * batch_size // NUM_VIRTUAL_NODES, **settings
                )
                numbers[f"naive-{num_workers}"], _ = await _trained(there, job, num_workers, seed, epochs)
        return numbers | {"different-states": float(sum(state != states[0] for state in states))}

    return asyncio.run(measure())


async def _trained(there: Stage, job: NoisyDigits, num_workers: int, seed: int, epochs: int) -> tuple[float, str]:
    """Percent of the held-out images, and a digest of the model."""
    job.seed = seed
    batch_size = int(job.hyperparameters["global_batch_size"])
    spec = job.term_condition(max_iterations=epochs * _NUM_SAMPLES // batch_size).set_job_class("best_effort").spec()
    crew = there.crew(f"{type(job).__name__.lower()}-{num_workers}-{seed}", spec, checkpoint_every_s=1e6)
    await crew.start(num_workers)
    await crew.until(lambda: not crew.processes, "it has finished")
    state = crew.newest_state()
    model = job.init_model()
    model.load_state_dict(state["model"])
    with torch.no_grad():
        return 100.0 * job.evaluate(model.eval())["accuracy"], digest(state["model"])
