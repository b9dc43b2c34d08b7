"""Training as tasks of a padding load: the same bits as an ordinary run of the same job."""

import asyncio
import os
import signal
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import pytest_asyncio

from benchmarks.engine.sensitive import digest
from elasticflow.services.executor.processes.task_runner import RunnerEnded
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.messages.worker_protocol.from_worker import Failed, Finished, Started
from examples.digits import Digits
from examples.text import Text
from tests.support.rings import few_daily
from tests.support.task_runners import WAIT_S, Runners, until
from tests.support.training_in_tasks import FUNCTION, result_of, training

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 12  # iterations


async def ordinary_run(node, spec, **launch) -> tuple[str, dict[str, float]]:
    """Digest of the final state, and metrics."""
    job_id = node.new_job_id()
    workers = await node.launch(spec, job_id=job_id, **launch)
    finished = await workers.first(Finished)
    await workers.ended()
    return digest_in(node.checkpoints_of(job_id)), dict(finished.metrics)


def digest_in(checkpoint_dir: Path) -> str:
    state = CheckpointStore(checkpoint_dir, generation=1000).newest()
    assert state is not None
    return digest(state)


@pytest.fixture(scope="module")
def stateful(spec_of):
    return spec_of("Stateful", global_batch_size=21, max_iterations=LAST)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def expected(node, stateful) -> tuple[str, dict[str, float]]:
    """Of one worker."""
    return await ordinary_run(node, stateful)


@pytest.mark.parametrize(
    ("function", "num_runners"), few_daily(product(["Stateful", "InPartitions", "Points"], [3, 1]), 1)
)
async def test_any_number_of_runners_gives_the_bits_of_an_ordinary_run(
    node, runners: Runners, spec_of, tmp_path, function, num_runners
):
    """Stateful has dropout, batch norm, augmentation, and noise after the backward pass."""
    spec = spec_of(function, global_batch_size=21, max_iterations=LAST)
    expected = await ordinary_run(node, spec, num_workers=num_runners)
    async with training(spec, tmp_path) as made:
        finished = await result_of(made, runners, num_runners)
    assert isinstance(finished, Finished), finished
    assert (digest_in(tmp_path), dict(finished.metrics)) == expected


async def test_the_order_of_tasks_and_duplicates_do_not_change_the_bits(runners, stateful, expected, tmp_path):
    async with training(stateful, tmp_path) as made:
        made.on_due = lambda tasks: [*reversed(tasks), *tasks]
        finished = await result_of(made, runners, 2)
    assert (digest_in(tmp_path), dict(finished.metrics)) == expected
    num_steps = 1 + LAST  # the first one twice
    unreported = 8 * num_steps - made.results.count(True)
    assert 0 <= unreported <= 2, "each gradient counts once; the end can come before both runners' last reports"
    assert False in made.results


async def test_a_runner_that_ends_within_a_task_does_not_change_the_bits(runners, stateful, expected, tmp_path):
    doomed = replace(stateful, hyperparameters={"dies_at": 5, "record": str(tmp_path)})
    async with training(doomed, tmp_path / "run") as made:
        finished = await result_of(made, runners, 2)
    assert any(isinstance(result, RunnerEnded) for result in made.results)
    assert (digest_in(tmp_path / "run"), dict(finished.metrics)) == expected


async def test_a_runner_that_is_stuck_delays_no_step(runners, stateful, expected, tmp_path):
    """Its task is duplicated, whether it has begun it or not."""
    async with training(stateful, tmp_path) as made:
        stuck, other = [await runners.start(FUNCTION) for _ in range(2)]
        serving = [asyncio.create_task(made.serve(runner)) for runner in (stuck, other)]
        following = asyncio.create_task(made.follow())
        await until(lambda: made.results.count(True) > 8)
        os.kill(stuck.pid, signal.SIGSTOP)
        async with asyncio.timeout(WAIT_S):
            finished = await following
        for task in serving:
            task.cancel()
        await asyncio.wait(serving)
    assert (digest_in(tmp_path), dict(finished.metrics)) == expected


async def test_workers_and_managers_continue_from_each_others_checkpoints(node, runners, stateful, expected):
    job_id = node.new_job_id()
    begin, middle = (replace(stateful, max_iterations=until) for until in (4, 8))
    await (await node.launch(begin, job_id=job_id, num_workers=2)).ended()
    async with training(middle, node.checkpoints_of(job_id)) as made:
        assert (await result_of(made, runners, 2)).iteration == 8
    workers = await node.launch(stateful, job_id=job_id, generation=3)
    assert (await workers.first(Started)).iteration == 8
    finished = await workers.first(Finished)
    await workers.ended()
    assert (digest_in(node.checkpoints_of(job_id)), dict(finished.metrics)) == expected


async def test_micro_batches_are_those_of_an_ordinary_run(node, runners, spec_of, tmp_path):
    spec = spec_of("Stateful", global_batch_size=37, max_iterations=LAST)  # 4 or 5 samples in each virtual node
    expected = await ordinary_run(node, spec, micro_batch_size=4)
    async with training(spec, tmp_path, micro_batch_size=4) as made:
        finished = await result_of(made, runners, 2)
    assert (digest_in(tmp_path), dict(finished.metrics)) == expected


@pytest.mark.parametrize("job", few_daily([Text(), Digits()], 1), ids=lambda job: type(job).__name__)
async def test_examples_with_convolutions_and_attention(node, runners, job, tmp_path):
    spec = job.term_condition(max_iterations=5).set_job_class("best_effort").spec()
    expected = await ordinary_run(node, spec)
    async with training(spec, tmp_path) as made:
        finished = await result_of(made, runners, 2)
    assert (digest_in(tmp_path), dict(finished.metrics)) == expected


@pytest.mark.gpu
async def test_a_manager_and_runners_on_a_gpu_give_the_bits_of_a_worker_on_it(node, runners, stateful, tmp_path):
    expected = await ordinary_run(node, stateful, device="cuda")
    async with training(stateful, tmp_path, device="cuda") as made:
        finished = await result_of(made, runners, 2, device="cuda")
    assert (digest_in(tmp_path), dict(finished.metrics)) == expected


@pytest.mark.parametrize(
    ("function", "error"),
    few_daily(
        [
            ("Fast", 'reproducible = "fast"'),
            ("FromAnUnsizedStream", "a data set without a length cannot be read in tasks"),
            ("ChangesBuffersLate", "changes the model's buffers after backward()"),
            ("TwoBackwards", "it took backward() twice"),
            # test_bitwise.py has these in a worker, which checks the same
            ("TooManyVirtualNodes", "virtual_nodes: must be from 1 to global_batch_size (16), not 17"),
            ("Approximate", 'reproducible: must be "bitwise" or "fast", not \'roughly\''),
            ("Sparse", "the model has sparse gradients"),
            ("Closure", "step(closure) of RepeatsItsClosure may compute gradients more than once in a step"),
        ],
        4,
    ),
)
async def test_what_no_task_can_compute_is_named_before_the_first_task(node, spec_of, tmp_path, function, error):
    with pytest.raises(AssertionError) as refused:
        async with training(spec_of(function), tmp_path):
            pass
    assert error in str(refused.value)


async def test_hidden_state_is_found_by_a_second_first_step(node, runners, spec_of, tmp_path):
    async with training(spec_of("HiddenState"), tmp_path) as made:
        failed = await result_of(made, runners, 1)
    assert isinstance(failed, Failed)
    assert "the same step gave another loss when it was repeated: the job keeps model.0.running" in failed.error
