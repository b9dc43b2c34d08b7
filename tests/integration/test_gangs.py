"""Jobs whose replicas have two GPUs each: they grow from one replica to two, each of them on one node."""

from dataclasses import replace
from pathlib import Path

from elasticflow.shared.messages import events
from elasticflow.shared.messages.gpus import are_whole_gangs
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from testbed.real_pool import CONFIG, job, running_pool, slowed_down

STEPS = 40
SHARDED = JobSpec(
    training_function="examples.gpt.sharded:__torchrun__",
    model_name="gpt",
    global_batch_size=32,
    hyperparameters={"1": "--steps", "2": str(STEPS), "3": "--width", "4": "32", "5": "--save-every", "6": "10"},
    max_iterations=STEPS,
    job_class=JobClass.BEST_EFFORT,
    gpus_per_replica=2,
)
CURVES = {
    **CONFIG.curves,
    "gpt#gang2/b32": {2: 10.0, 4: 20.0},
    "steps#gang2/b8": {2: 5.0, 4: 10.0},
}


async def test_a_sharded_script_grows_from_one_replica_to_two(tmp_path: Path) -> None:
    """Two nodes of two slots; another job has one of the nodes at first."""
    async with running_pool(tmp_path, num_nodes=2, replicas={}, config=replace(CONFIG, curves=CURVES)) as pool:
        endless = slowed_down(job(min_gpus=2, max_gpus=2), tmp_path / "slow")
        await pool.acknowledged(endless, "other")
        await pool.when(
            lambda state: (other := state.live_jobs.get("other")) is not None and other.training, "the other job trains"
        )
        await pool.acknowledged(SHARDED, "gang")
        await pool.when(
            lambda state: (
                (gang := state.live_jobs.get("gang")) is not None
                and gang.training
                and len(gang.gpus) == 2
                and gang.checkpoint_iteration > 0
            ),
            "it trains on one replica, and has saved a snapshot",
        )
        for worker in pool.workers():
            worker.suspend()  # a fast machine trains it to its end before the other one has ended
        await pool.client.cancel("other")
        await pool.when(lambda state: len(state.live_jobs["gang"].gpus) == 4, "it is to grow")
        for worker in pool.workers():
            worker.resume()
        await pool.ended(["gang"])
        messages = [entry.message for entry in await pool.ledger()]
        placed = [
            [gpu.node_id for gpu in placement.gpus]
            for message in messages
            for decided in (message.events if isinstance(message, events.PlanDecided) else ())
            for placement in (decided.placements if isinstance(decided, events.PlacementDecided) else ())
            if placement.job_id == "gang"
        ]
        assert all(are_whole_gangs(nodes, 2) for nodes in placed)
        assert {len(nodes) for nodes in placed} >= {2, 4}
        failed = [message for message in messages if isinstance(message, events.JobFailed)]
        assert [message.job_id for message in messages if isinstance(message, events.JobFinished)] == ["gang"], failed
        starts = [each for each in messages if isinstance(each, events.GenerationStarted) and each.job_id == "gang"]
        assert [start.num_gpus for start in starts][:2] == [2, 4], (
            "where four processes are slower, it may shrink again"
        )
        assert starts[1].iteration > 0, "it resumed from its snapshot"


async def test_a_class_grows_and_survives_the_loss_of_a_worker_without_a_stop(tmp_path: Path) -> None:
    """Two nodes of two slots. No generation begins from a checkpoint but the first."""
    slow = tmp_path / "slow"
    async with running_pool(tmp_path, num_nodes=2, replicas={}, config=replace(CONFIG, curves=CURVES)) as pool:
        endless = slowed_down(job(min_gpus=2, max_gpus=2), tmp_path / "slow-other")
        await pool.acknowledged(endless, "other")
        await pool.when(
            lambda state: (other := state.live_jobs.get("other")) is not None and other.training, "the other job trains"
        )
        spec = job(
            JobClass.BEST_EFFORT,
            training_function="testbed.user_code.tiny_jobs:InGangs",
            gpus_per_replica=2,
            max_iterations=60,
        )
        await pool.acknowledged(slowed_down(spec, slow), "gang")
        await pool.when(
            lambda state: (gang := state.live_jobs.get("gang")) is not None and gang.training and len(gang.gpus) == 2,
            "it trains on one replica",
        )
        await pool.client.cancel("other")
        grown = await pool.when(
            lambda state: (gang := state.live_jobs["gang"]).training and len(gang.gpus) == 4, "it trains on two"
        )
        before = grown.live_jobs["gang"].generation
        pool.workers()[-1].kill()
        await pool.when(
            lambda state: (
                (gang := state.live_jobs["gang"]).generation > before and gang.training and len(gang.gpus) == 4
            ),
            "another replica has taken the place of the lost one",
        )
        slow.unlink()
        await pool.ended(["gang"])
        messages = [entry.message for entry in await pool.ledger()]
        failed = [message for message in messages if isinstance(message, events.JobFailed)]
        assert [message.job_id for message in messages if isinstance(message, events.JobFinished)] == ["gang"], failed
        starts = [each for each in messages if isinstance(each, events.GenerationStarted) and each.job_id == "gang"]
        assert starts[0].resize is None
        assert all(start.resize is not None for start in starts[1:]), "each later one got the state from memory"
        crashes = [each for each in messages if isinstance(each, events.WorkerCrashed)]
        assert len(crashes) == 1, "the other worker of the lost one's replica counts as lost with it"
