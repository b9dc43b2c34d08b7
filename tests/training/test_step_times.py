"""A profiling run also measures steps with fewer virtual nodes than the job has: on several GPUs with one on each."""

from pathlib import Path

import pytest

from elasticflow.shared.messages.timeouts import FailureTimeouts
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode, Profiled
from tests.training.test_scripts import example

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def profiled(node, spec, **changes):
    job_id = node.new_job_id()
    run = {"purpose": "profile", "profile_min_s": 0.05, "measures_step_times": True} | changes
    workers = await node.launch(spec, job_id=job_id, **run)
    measured = await workers.first(Profiled)
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}
    assert not node.checkpoints_of(job_id).exists()
    return measured


def calls_recorded(folder: Path) -> list[list[str]]:
    """The iteration and the samples of each call of train(), in order."""
    (record,) = folder.iterdir()
    return [line.split() for line in record.read_text().splitlines()]


async def test_steps_of_fewer_virtual_nodes_compute_these_alone(node, spec_of, tmp_path):
    spec = spec_of("Points", max_iterations=3, hyperparameters={"step_s": 0.005, "record": str(tmp_path)})
    measured = await profiled(node, spec)
    times = measured.single_gpu
    assert (times.num_virtual_nodes, times.reproducible) == (8, "bitwise")
    assert list(times.step_s_by_virtual_nodes) == [1, 2, 3, 4, 6, 8]
    assert all(step_s >= 0.005 * count for count, step_s in times.step_s_by_virtual_nodes.items())
    assert times.step_s_by_virtual_nodes[8] == pytest.approx(1 / measured.iterations_per_s)
    calls = calls_recorded(tmp_path)
    assert {len(numbers) for _, *numbers in calls} == {2}  # samples of a virtual node
    # twice the whole batch, then the warm-up of each count
    assert [iteration for iteration, *_ in calls].count("0") == 8 + 8 + 1 + 2 + 3 + 4 + 6


async def test_the_fast_mode_computes_parts_of_the_batch_in_one_pass(node, spec_of, tmp_path):
    spec = spec_of("Fast", hyperparameters={"step_s": 0.002, "record": str(tmp_path)})
    times = (await profiled(node, spec)).single_gpu
    assert (times.num_virtual_nodes, times.reproducible) == (16, "fast")
    assert list(times.step_s_by_virtual_nodes) == [1, 2, 3, 4, 6, 8, 12, 16]
    assert {len(numbers) for _, *numbers in calls_recorded(tmp_path)} == {1, 2, 3, 4, 6, 8, 12, 16}


async def test_an_error_on_few_samples_ends_the_measurement_and_not_the_job(node, spec_of):
    measured = await profiled(node, spec_of("NeedsTwoSamples"))
    assert list(measured.single_gpu.step_s_by_virtual_nodes) == [16]


async def test_several_gpus_measure_one_virtual_node_on_each(node, spec_of, tmp_path):
    spec = spec_of("Points", max_iterations=3, hyperparameters={"step_s": 0.005, "record": str(tmp_path)})
    measured = await profiled(node, spec, num_workers=2)
    assert measured.single_gpu is None
    assert measured.one_virtual_node_s >= 0.005
    for record in tmp_path.iterdir():
        iterations = [line.split()[0] for line in record.read_text().splitlines()]
        # each worker computes half of the batch twice, then one virtual node in each step, from the warm-up on
        assert iterations.count("0") == 4 + 4 + 1
        last = int(iterations[-1])
        assert iterations[-last - 1 :] == [str(iteration) for iteration in range(last + 1)]


@pytest.mark.parametrize(
    ("function", "run"),
    [
        ("Points", {"measures_step_times": False}),
        ("Points", {"measures_step_times": False, "num_workers": 2}),
        ("Fast", {"num_workers": 2}),
    ],
)
async def test_a_pool_of_one_type_and_a_fast_job_on_several_gpus_measure_no_parts(node, spec_of, function, run):
    measured = await profiled(node, spec_of(function), **run)
    assert (measured.single_gpu, measured.one_virtual_node_s) == (None, None)


async def test_an_error_on_few_samples_on_several_gpus_does_not_end_the_job(node, spec_of):
    measured = await profiled(node, spec_of("NeedsTwoSamples"), num_workers=2)
    assert measured.one_virtual_node_s is None


async def test_one_virtual_node_is_measured_with_the_whole_batch(node, spec_of):
    measured = await profiled(node, spec_of("Points", global_batch_size=1))
    assert list(measured.single_gpu.step_s_by_virtual_nodes) == [1]


async def test_virtual_nodes_that_exceed_the_memory_are_measured_in_micro_batches(node, spec_of):
    spec = spec_of("TooBig", hyperparameters={"fits": 1})
    measured = await profiled(node, spec, micro_batch_size=1)
    assert list(measured.single_gpu.step_s_by_virtual_nodes) == [1, 2, 3, 4, 6, 8]


async def test_a_count_does_not_begin_late_in_the_time_of_the_run(node, spec_of):
    spec = spec_of("Points", hyperparameters={"step_s": 0.01})
    late = {"timeouts": FailureTimeouts(stall_timeout_s=0.1)}
    assert list((await profiled(node, spec, **late)).single_gpu.step_s_by_virtual_nodes) == [8]


async def test_a_script_is_measured_as_a_class_is(node, spec_of):
    measured = await profiled(node, example(spec_of))
    assert list(measured.single_gpu.step_s_by_virtual_nodes) == [1, 2, 3, 4, 6, 8]
