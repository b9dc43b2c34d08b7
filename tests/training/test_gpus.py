"""Workers on GPUs, with NCCL between them, end with the weights of CPU slots, and leave no memory allocated."""

import asyncio
import sys
from pathlib import Path

import pytest
import torch

from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointWritten,
    ExitCode,
    Finished,
    Profiled,
    Progressed,
    Started,
)
from testbed.worker_nodes import Lineup

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.gpu]

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024
HELD_MIB = 1024
WAIT_S = 60.0
LONG = {"max_iterations": 10**6, "hyperparameters": {"held_mib": HELD_MIB, "step_s": 0.005}}


async def trained_weights(node, spec, generations=((1, 1),), **launch) -> torch.Tensor:
    """At the end of a job that is resized after some steps, by generation and number of workers."""
    job_id = node.new_job_id()
    iteration = 0
    for generation, num_workers in generations:
        workers = await node.launch(spec, job_id=job_id, num_workers=num_workers, generation=generation, **launch)
        assert (await workers.first(Started)).iteration == iteration
        if (generation, num_workers) != generations[-1]:
            await workers.first(Progressed)
            workers.stop()
        codes = {exit_.code for exit_ in (await workers.ended()).values()}
        assert codes == {ExitCode.DONE}, node.log_of(job_id, generation=generation)
        iteration = (await workers.first(CheckpointWritten)).iteration
    assert (await workers.first(Finished)).iteration == iteration == spec.max_iterations
    state = CheckpointStore(node.checkpoints_of(job_id), generation=1000).newest()
    assert state is not None
    return torch.cat([value.flatten() for value in state["model"].values()])


def assert_same_end(moved: torch.Tensor, undisturbed: torch.Tensor) -> None:
    torch.testing.assert_close(moved, undisturbed, rtol=5e-3, atol=1e-3)


async def test_a_gpu_ends_with_the_weights_of_a_cpu_slot(node, spec_of):
    spec = spec_of("Points", max_iterations=200)
    assert_same_end(await trained_weights(node, spec, device="cuda"), await trained_weights(node, spec))


async def test_a_job_continues_from_its_checkpoint_on_a_gpu(node, spec_of):
    spec = spec_of("Points", max_iterations=400, hyperparameters={"step_s": 0.004})
    moved = await trained_weights(node, spec, ((1, 1), (2, 1)), device="cuda")
    assert_same_end(moved, await trained_weights(node, spec_of("Points", max_iterations=400)))


@pytest.mark.parametrize(("function", "devices"), [("Points", ("cpu", "cuda")), ("Fast", ("cuda", "cpu"))])
async def test_a_cpu_slot_and_a_gpu_train_one_job(node, spec_of, function, devices):
    """The first of them continues alone in between."""
    spec = spec_of(function, max_iterations=400, hyperparameters={"step_s": 0.008})
    mixed = await trained_weights(node, spec, ((1, 2), (2, 1), (3, 2)), lineup=Lineup(devices=devices))
    assert_same_end(mixed, await trained_weights(node, spec_of("Points", max_iterations=400)))


async def test_nccl_carries_gradients_and_gloo_agreements(tmp_path):
    """As between several GPUs, but in a group of one: NCCL does not accept two workers on one GPU."""
    checked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", NCCL_ON_ONE_GPU, str(tmp_path / "store")),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WAIT_S):
        out, _ = await checked.communicate()
    assert (checked.returncode, out) == (0, b"nccl\n")


NCCL_ON_ONE_GPU = """
import os, sys
import torch
import torch.distributed as dist
from elasticflow.services.executor.worker.process.device import Stopwatch, claim, finish_work
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.transport import Membership
from elasticflow.services.executor.worker.engine.gradients_and_buffers import CarriedGradients
from elasticflow.services.executor.worker.engine.fast_steps import FastSteps
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan

spec = JobSpec(training_function="m:C", global_batch_size=4, max_iterations=1, deadline_in_s=60.0)
assignment = Assignment(
    job_id="a", plan=GenerationPlan(generation=1, world_size=1), rank=0, spec=spec, checkpoint_dir="", device="cuda"
)
device = claim("cuda", 0)
member = Membership(dist.FileStore(sys.argv[1], 1), rank=0, size=1, timeout_s=60)
group = Group(member, generation=1, device=device)
members = GenerationMembers(group, VirtualNodes(count=1, global_batch_size=4))
model = torch.nn.Linear(3, 1).to(device)
optimizer = torch.optim.SGD(model.parameters())
steps = FastSteps(
    model,
    carried=CarriedGradients(model, optimizer),
    members=members,
    device=device,
    job_seed=0,
    find_unused_parameters=False,
    cpu_throttle=CpuThrottle(1.0),
    stopwatch=Stopwatch(device),
)
points = torch.ones(4, 3, device=device)
steps.model(points).mean().backward()
finish_work(device)
torch.testing.assert_close(model.weight.grad, torch.ones(1, 3, device=device))
assert group.all_gather(torch.ones(2, dtype=torch.float64))[0].tolist() == [1.0, 1.0]
group.exchange([], [])
print(group._on_device.process_group._get_backend(device).name(), flush=True)
os._exit(0)
"""


@pytest.mark.gpu(num_gpus=2)
async def test_one_then_two_then_one_gpu_end_with_the_weights_of_a_cpu_slot(node, spec_of):
    spec = spec_of("Points", max_iterations=600, hyperparameters={"step_s": 0.004})
    moved = await trained_weights(node, spec, ((1, 1), (2, 2), (3, 1)), device="cuda")
    assert_same_end(moved, await trained_weights(node, spec_of("Points", max_iterations=600)))


@pytest.mark.gpu(num_gpus=2)
async def test_a_worker_on_the_second_gpu_uses_only_that_one(node, spec_of):
    free_before = [torch.cuda.mem_get_info(index)[0] for index in range(2)]
    spec = spec_of("HoldsMemory", **LONG)
    workers = await node.launch(spec, job_id=node.new_job_id(), device="cuda", gpu_index=1)
    await workers.first(Progressed)
    held = [before - torch.cuda.mem_get_info(index)[0] for index, before in enumerate(free_before)]
    workers.stop()
    await workers.ended()
    assert held[0] < HELD_MIB * MIB <= held[1]


@pytest.mark.gpu(num_gpus=2)
async def test_two_gpus_are_profiled(node, spec_of):
    spec = spec_of("Points", hyperparameters={"step_s": 0.01})
    workers = await node.launch(
        spec, job_id=node.new_job_id(), num_workers=2, device="cuda", purpose="profile", profile_min_s=0.1
    )
    assert 0 < (await workers.first(Profiled)).iterations_per_s < 100  # a step takes at least 10 ms
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}


async def test_a_killed_worker_leaves_no_gpu_memory_allocated(node, spec_of):
    """Nor do its reader processes, which have inherited its files."""
    free_before, _ = torch.cuda.mem_get_info(0)
    workers = await node.launch(spec_of("HoldsMemory", **LONG), job_id=node.new_job_id(), device="cuda")
    await workers.first(Progressed)
    assert free_before - torch.cuda.mem_get_info(0)[0] >= HELD_MIB * MIB
    workers.workers[0].kill()
    await workers.ended()
    async with asyncio.timeout(WAIT_S):
        while free_before - torch.cuda.mem_get_info(0)[0] >= HELD_MIB * MIB:  # noqa: ASYNC110 - only the driver knows
            await asyncio.sleep(0.05)
