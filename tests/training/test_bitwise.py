"""The same bits at any number of workers, through resizes and crashes: weights, optimizer, buffers and metrics."""

import os
import signal

import pytest
import pytest_asyncio
import torch

from elasticflow import run_locally
from elasticflow.shared.messages.worker_protocol.from_worker import (
    Failed,
    Finished,
    Interrupted,
    Started,
)
from examples.digits import Digits
from examples.text import Text
from examples.wine import Wine
from testbed.user_code.training_functions import NUM_SAMPLES, Stateful
from tests.support.rings import few_daily
from tests.support.trained_jobs import UNEVEN, Trained, checkpoint_of, end_of, stateful, train

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 20  # iterations
UNDISTURBED = "undisturbed"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def one_worker(node, spec_of) -> Trained:
    """The result of one undisturbed worker."""
    return await train(node, stateful(spec_of), job_id=UNDISTURBED)


async def test_workers_that_share_the_evaluation_get_the_metrics_of_one_worker(node, spec_of):
    spec = spec_of("EvaluatesInParts", global_batch_size=4, max_iterations=12)
    alone, *together = [(await train(node, spec, num_workers=num_workers)).metrics for num_workers in (1, 3, 4)]
    assert all(metrics == alone for metrics in together)
    assert alone["samples"] == NUM_SAMPLES
    assert 0 < alone["error"] < 10


async def test_a_local_run_ends_with_the_bits_of_a_pool(node, one_worker, tmp_path):
    environment, steps = dict(os.environ), []
    job = Stateful().set_hyperparameter(global_batch_size=UNEVEN).term_condition(max_iterations=LAST)
    ended = run_locally(job, out=tmp_path, device="cpu", on_progress=lambda iteration, _: steps.append(iteration))
    in_the_pool = checkpoint_of(node, UNDISTURBED)["model"]
    model = torch.load(tmp_path / "model.pt")
    assert model.keys() == in_the_pool.keys() == ended.model.state_dict().keys()
    assert all(torch.equal(model[name], value) for name, value in in_the_pool.items())
    assert (ended.iteration, ended.condition, ended.metrics) == (LAST, "max_iterations", one_worker.metrics)
    assert steps == list(range(1, LAST + 1))
    assert dict(os.environ) == environment


async def test_a_local_run_with_the_virtual_nodes_of_a_pool_ends_with_its_bits(node, spec_of):
    job = Stateful().set_hyperparameter(global_batch_size=UNEVEN).term_condition(max_iterations=4)
    here = run_locally(job, device="cpu", virtual_nodes=2).metrics
    assert here == (await train(node, stateful(spec_of, until=4), num_workers=2, num_virtual_nodes=2)).metrics
    assert here != run_locally(job, device="cpu").metrics


@pytest.mark.parametrize("num_workers", few_daily([2, 3, 4, 8], 3))
async def test_any_number_of_workers_gives_the_same_bits(node, spec_of, one_worker, num_workers):
    assert await train(node, stateful(spec_of), num_workers=num_workers) == one_worker


async def test_a_surplus_worker_repeats_a_part_that_counts_elsewhere(node, spec_of, one_worker):
    assert await train(node, stateful(spec_of), num_workers=9) == one_worker


async def test_resizes_do_not_change_the_bits(each_node, spec_of, one_worker):
    job_id = each_node.new_job_id()
    end = None
    for generation, (num_workers, until) in enumerate([(1, 6), (4, 13), (2, LAST)], start=1):
        spec = stateful(spec_of, until=until)
        end = await train(each_node, spec, job_id=job_id, num_workers=num_workers, generation=generation)
    assert end == one_worker


async def test_a_killed_worker_does_not_change_the_bits(each_node, spec_of, one_worker, tmp_path):
    """Between the backward pass and the optimizer's step, in the middle of its virtual nodes."""
    job_id = each_node.new_job_id()
    doomed = stateful(spec_of, dies_at=11, record=str(tmp_path))
    workers = await each_node.launch(doomed, job_id=job_id, num_workers=3)
    await workers.first(Interrupted)
    workers.stop()
    exits = await workers.ended()
    assert signal.SIGKILL in {exit_.signal for exit_ in exits.values()}
    assert not workers.all_of(Finished)
    workers = await each_node.launch(stateful(spec_of), job_id=job_id, num_workers=2, generation=2)
    assert (await workers.first(Started)).iteration == 11
    assert await end_of(each_node, workers) == one_worker


@pytest.mark.parametrize("job", [Digits(), Text(), Wine()], ids=lambda job: type(job).__name__)
async def test_examples_with_convolutions_attention_and_noise(node, job):
    spec = job.term_condition(max_iterations=5).set_deadline(within=600).spec()
    alone, together = [await train(node, spec, num_workers=num_workers) for num_workers in (1, 3)]
    assert together == alone


async def test_diverging_parts_are_named(node, spec_of):
    workers = await node.launch(spec_of("SkipsSomeParts"), job_id=node.new_job_id())
    failed = await workers.first(Failed)
    await workers.ended()
    assert "parts of one reached backward() and the end" in failed.error
    assert 'set reproducible = "fast"' in failed.error


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("TooManyVirtualNodes", "virtual_nodes: must be from 1 to global_batch_size (16), not 17"),
        ("Approximate", 'reproducible: must be "bitwise" or "fast", not \'roughly\''),
        ("Sparse", "the model has sparse gradients"),
        ("Closure", "step(closure) of RepeatsItsClosure may compute gradients more than once in a step"),
    ],
)
async def test_features_without_bitwise_support_are_named(node, spec_of, function, error):
    workers = await node.launch(spec_of(function), job_id=node.new_job_id())
    assert error in (await workers.first(Failed)).error
    await workers.ended()


async def test_a_job_without_metrics_ends_normally(node, spec_of):
    assert (await train(node, spec_of("ReturnsNoMetrics"), num_workers=3)).metrics == {}


async def test_two_backward_passes_in_one_step_add_up(node, spec_of):
    """As on one device: the gradient of the sum, from one backward pass or from two."""
    alone, together = [await train(node, spec_of("TwoBackwards"), num_workers=num_workers) for num_workers in (1, 3)]
    assert together.bits == alone.bits
