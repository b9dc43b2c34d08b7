"""The environment of a torchrun script, the value of its steps, and that no worker joins it while it trains."""

import math
from dataclasses import replace

import pytest
import torch.distributed as dist

from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.scripts import torchrun_script
from elasticflow.services.executor.worker.scripts.script_environment import GpuSlot, torchrun_environment
from elasticflow.services.executor.worker.scripts.torchrun_script import iterations_per_step
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan
from testbed.histories import pool, spec
from tests.support.worker_events import admitted, placed


def assignment(rank: int = 0, world_size: int = 4, device: str = "cuda", **hyperparameters) -> Assignment:
    return Assignment(
        job_id="digits",
        plan=GenerationPlan(generation=3, world_size=world_size),
        rank=rank,
        spec=spec(global_batch_size=128, hyperparameters=hyperparameters),
        checkpoint_dir="/data",
        device=device,
    )


SEATS = [GpuSlot("a", 4), GpuSlot("a", 5), GpuSlot("b", 2), GpuSlot("b", 3)]


def test_ranks_are_counted_over_all_nodes_and_on_each():
    reported = torchrun_environment(assignment(rank=3), SEATS, "10.0.0.1:4000", {})
    assert {name: reported[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")} == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert (reported["GROUP_RANK"], reported["GROUP_WORLD_SIZE"]) == ("1", "2")
    assert (reported["MASTER_ADDR"], reported["MASTER_PORT"]) == ("10.0.0.1", "4000")
    assert reported["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert reported["TORCHELASTIC_RESTART_COUNT"] == "2"


@pytest.mark.parametrize(("inherited", "visible"), [("", "2,3"), ("0,1,6,7", "6,7")])
def test_a_script_sees_only_the_gpus_of_its_nodes_workers(inherited, visible):
    reported = torchrun_environment(assignment(rank=2), SEATS, "10.0.0.1:4000", {"CUDA_VISIBLE_DEVICES": inherited})
    assert reported["CUDA_VISIBLE_DEVICES"] == visible
    assert reported["LOCAL_RANK"] == "0", "local ranks count the job's GPUs, whatever their numbers on the node"
    on_cpu = torchrun_environment(assignment(rank=2, device="cpu"), SEATS, "10.0.0.1:4000", {})
    assert on_cpu["CUDA_VISIBLE_DEVICES"] == ""


def test_a_script_is_told_how_many_gpus_are_a_replica_if_they_are_several():
    def environment(gpus_per_replica: int, slots: list[GpuSlot]) -> dict[str, str]:
        several = assignment(rank=2)
        several = replace(several, spec=replace(several.spec, gpus_per_replica=gpus_per_replica))
        return torchrun_environment(several, slots, "10.0.0.1:4000", {})

    assert environment(2, SEATS)["EF_GPUS_PER_REPLICA"] == "2"
    assert "EF_GPUS_PER_REPLICA" not in environment(1, SEATS)
    with pytest.raises(AssertionError, match="on two nodes"):
        environment(4, SEATS)


def test_workers_that_share_a_gpu_cannot_run_a_script_under_torchrun():
    shared = {"CUDA_VISIBLE_DEVICES": "0,0,1,1"}
    with pytest.raises(TrainingFailed, match="needs a GPU for each of its workers, and slots of this node share one"):
        torchrun_environment(assignment(rank=2), SEATS, "10.0.0.1:4000", shared)
    alone = torchrun_environment(assignment(world_size=1), [GpuSlot("n", 3)], "127.0.0.1:0", shared)
    assert alone["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_worker_that_is_alone_uses_no_store():
    reported = torchrun_environment(assignment(world_size=1), SEATS[:1], "127.0.0.1:0", {})
    assert reported["TORCHELASTIC_USE_AGENT_STORE"] == "False"


def test_a_step_is_an_iteration_or_the_workers_part_of_one():
    assert iterations_per_step(assignment()) == 1.0
    assert iterations_per_step(assignment(batch_per_worker=32)) == 1.0
    assert iterations_per_step(assignment(world_size=1, batch_per_worker=32)) == 0.25
    of_three = spec(global_batch_size=150, hyperparameters={"batch_per_worker": 50})
    third = iterations_per_step(replace(assignment(world_size=1), spec=of_three))
    assert int(sum([third] * 6)) == 2, "parts add up without rounding"


@pytest.mark.parametrize("wrong", ["some", 0, math.inf, math.nan, True])
def test_a_batch_that_is_no_number_of_samples_is_named(wrong):
    with pytest.raises(TrainingFailed, match=f"batch_per_worker: must be a positive number of samples, not {wrong!r}"):
        iterations_per_step(assignment(batch_per_worker=wrong))


@pytest.mark.parametrize(("entry", "stops"), [("Digits", False), ("__main__", False), ("__torchrun__", True)])
def test_only_a_torchrun_script_stops_to_be_resized(entry, stops):
    job_spec = spec(training_function=f"digits:{entry}")
    history = pool(4, stop_free=True).then(admitted(spec=job_spec), placed(1, "node-0:0")).started("a")
    job = history.then(placed(2, "node-0:0", "node-0:1")).state.live_jobs["a"]
    assert (job.previous_generation is None, bool(job.stopping)) == (stops, stops)


def test_groups_that_a_script_destroys_stay_open_until_its_process_ends(monkeypatch):
    """gloo's groups wait for each other when they close; destroying the world destroys all others."""
    monkeypatch.setattr(dist, "destroy_process_group", dist.destroy_process_group)
    monkeypatch.setattr(torchrun_script, "_groups", kept := [])
    torchrun_script._keep_groups()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    world, part = dist.group.WORLD, dist.new_group([0])
    dist.destroy_process_group()
    assert not dist.is_initialized()
    assert {world, part} <= set(kept)
