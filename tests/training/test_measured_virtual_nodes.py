"""The number of virtual nodes that a profiling run chooses, and jobs that train with one."""

from dataclasses import replace

import pytest

from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode, Failed, Profiled
from tests.support.trained_jobs import UNEVEN, stateful, train
from tests.training.test_scripts import example

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 8  # iterations


async def profiled(node, spec, **changes):
    run = {"purpose": "profile", "profile_min_s": 0.05, "most_virtual_nodes": 16} | changes
    workers = await node.launch(spec, job_id=node.new_job_id(), **run)
    measured = await workers.first(Profiled)
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}
    return measured


async def test_a_job_whose_time_is_that_of_its_calls_gets_one_virtual_node(node, spec_of):
    spec = spec_of("Points", hyperparameters={"step_s": 0.02})
    measured = await profiled(node, spec, measures_step_times=True)
    assert (measured.virtual_nodes.count, measured.virtual_nodes.source) == (1, "measured")
    assert set(measured.virtual_nodes.step_s_by_count) == {1}, "the others take at least twice as long"
    assert list(measured.single_gpu.step_s_by_virtual_nodes) == [1]
    assert measured.single_gpu.step_s_by_virtual_nodes[1] == pytest.approx(1 / measured.iterations_per_s)


async def test_a_number_that_the_code_cannot_compute_does_not_end_the_job(node, spec_of):
    measured = await profiled(node, spec_of("BitwiseNeedsTwoSamples"))
    assert measured.virtual_nodes.source == "measured"
    assert 16 not in measured.virtual_nodes.step_s_by_count


@pytest.mark.parametrize(
    ("function", "changes", "found"),
    [
        ("Points", {"most_virtual_nodes": 0}, None),
        ("Points", {"num_workers": 2}, None),
        ("Fast", {}, None),
        ("NamesVirtualNodes", {}, (4, "code")),
    ],
)
async def test_only_an_open_number_is_measured(node, spec_of, function, changes, found):
    virtual_nodes = (await profiled(node, spec_of(function), **changes)).virtual_nodes
    assert (virtual_nodes and (virtual_nodes.count, virtual_nodes.source)) == found


async def test_a_script_is_measured_as_a_class_is(node, spec_of):
    measured = await profiled(node, example(spec_of))
    assert measured.virtual_nodes.source in ("measured", "default")


@pytest.mark.parametrize("count", [2, 16])
async def test_any_number_of_workers_gives_the_same_bits(node, spec_of, count):
    """Also more workers than virtual nodes. By default, they have eight."""
    spec = replace(stateful(spec_of, until=LAST), global_batch_size=35)
    alone, *together = [await train(node, spec, num_workers=number, num_virtual_nodes=count) for number in (1, 2, 4)]
    assert together == [alone, alone]
    assert (await train(node, spec)).bits != alone.bits


async def test_a_script_trains_with_the_number_of_its_plan(node, spec_of):
    spec = example(spec_of)
    alone, together = [await train(node, spec, num_workers=number, num_virtual_nodes=2) for number in (1, 2)]
    assert together == alone
    assert (await train(node, spec)).bits != alone.bits


async def test_the_number_in_the_code_comes_first(node, spec_of):
    spec = spec_of("NamesVirtualNodes", global_batch_size=UNEVEN, max_iterations=LAST)
    assert await train(node, spec, num_virtual_nodes=16) == await train(node, spec)
    assert (await train(node, stateful(spec_of, until=LAST), num_virtual_nodes=4)).metrics == (
        await train(node, spec)
    ).metrics


async def test_a_checkpoint_of_another_number_is_refused(node, spec_of):
    job_id = node.new_job_id()
    await train(node, stateful(spec_of, until=4), job_id=job_id, num_virtual_nodes=4)
    more = stateful(spec_of, until=LAST)
    workers = await node.launch(more, job_id=job_id, num_virtual_nodes=16, generation=2)
    failed = await workers.first(Failed)
    await workers.ended()
    assert failed.error == (
        "the job has 16 virtual nodes here, but its state after 4 iterations is that of 4: let its code say "
        "virtual_nodes = 4, or submit it as a new job"
    )
