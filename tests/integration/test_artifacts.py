"""A real pool: the model and the files of a job come back to a client that shares no storage with the nodes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elasticflow.sdk.fetching import fetch_with
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.runtime.process.isolation.machine_check import namespaces_problem
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState
from testbed.real_pool import CONFIG, RunningPool, job, running_pool
from tests.support.executor_process import ROOT

LARGE_BYTES = 5_000_000  # of several pieces
MAX_BYTES = 6_000_000


def writing_job(**changes: object) -> JobSpec:
    function = "testbed.user_code.tiny_jobs:Writes"
    settings = {"step_s": 0.01, "large_bytes": LARGE_BYTES}
    spec = job(JobClass.BEST_EFFORT, training_function=function, hyperparameters=settings, max_iterations=60)
    return replace(spec, **changes)


def isolated_if_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EF_ISOLATION", "none" if namespaces_problem() else "required")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the function: workers do not see the working directory


def model_in_checkpoint(pool: RunningPool, job_id: str) -> dict[str, torch.Tensor]:
    files = sorted((pool.data_dir / "checkpoints" / job_id).glob("*.ckpt"))
    return torch.load(files[-1], map_location="cpu", weights_only=True)["model"]


def is_training(state: PoolState, job_id: str) -> bool:
    job = state.live_jobs.get(job_id)
    return job is not None and job.training


async def once_stored(pool: RunningPool, job_id: str) -> Job:
    def is_stored(state: PoolState) -> bool:
        job = state.ended_jobs.get(job_id)
        return job is not None and not job.artifacts.due and job.artifacts.sequence > 0

    return (await pool.when(is_stored, f"the artifacts of {job_id} are stored")).ended_jobs[job_id]


async def explained(pool: RunningPool, job_id: str) -> str:
    return "\n".join(entry.text for entry in await pool.client.history(job_id))


async def test_the_model_and_the_files_of_a_finished_job_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolated_if_possible(monkeypatch)
    async with running_pool(
        tmp_path, num_nodes=1, replicas={}, config=replace(CONFIG, max_artifact_bytes=MAX_BYTES)
    ) as pool:
        await pool.acknowledged(writing_job(), "small")
        small = await once_stored(pool, "small")
        too_large = writing_job(hyperparameters={"step_s": 0.01, "large_bytes": MAX_BYTES})
        await pool.acknowledged(too_large, "large")
        await once_stored(pool, "large")

        shown = list[tuple[int, int]]()
        fetched = await fetch_with(
            pool.client, "small", tmp_path / "here", "torch", on_bytes=lambda done, total: shown.append((done, total))
        )
        assert shown[-1][0] == shown[-1][1] > 0
        assert shown == sorted(shown)
        assert small.phase is Phase.FINISHED
        assert small.artifacts.model_iteration == fetched.iteration == 60
        assert fetched.model is not None
        model = torch.load(fetched.model, weights_only=True)
        expected = model_in_checkpoint(pool, "small")
        assert model.keys() == expected.keys()
        assert all(torch.equal(model[name], expected[name]) for name in expected)
        files = {str(path.relative_to(tmp_path / "here")): path.stat().st_size for path in fetched.files}
        assert files == {"artifacts/large.bin": LARGE_BYTES, "artifacts/plots/loss.csv": 6}
        (link,) = fetched.unstored
        assert link.path.endswith("checkpoints/small/artifacts/passwd")
        assert "a link" in link.reason

        words, why = await explained(pool, "large"), "checkpoints/large/artifacts/large.bin: its 6,000,000 bytes exceed"
        assert "stored for `eflow fetch`: the model of iteration 60 and 1 file" in words
        assert (
            "checkpoints/large/artifacts/large.bin: its 6,000,000 bytes exceed what the pool stores of a job" in words
        )
        log = sorted((pool.data_dir / "logs" / "large").glob("g*-r0.log"))[-1].read_text()
        assert why in log


@pytest.mark.asyncio(loop_scope="session")
async def test_the_model_of_a_running_job_and_that_of_a_killed_executor(
    session_pool: RunningPool, tmp_path: Path
) -> None:
    await fetched_while_it_runs_and_after_a_kill(session_pool, tmp_path / "here")


@pytest.mark.nightly("the object store is tried each day, and unit tests of artifact_uploads.py store in a folder")
async def test_a_folder_by_fsspec_has_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    monkeypatch.setenv("EF_ARTIFACT_STORE", store.as_uri())
    async with running_pool(tmp_path, num_nodes=1, replicas={}) as pool:
        await fetched_while_it_runs_and_after_a_kill(pool, tmp_path / "here")
    assert store.exists()


async def fetched_while_it_runs_and_after_a_kill(pool: RunningPool, folder: Path) -> None:
    await pool.acknowledged(writing_job(max_iterations=100_000), "long")
    await pool.when(lambda state: state.live_jobs["long"].training if "long" in state.live_jobs else False, "it trains")
    artifacts = await pool.client.artifacts("long")
    assert artifacts.stored.model is not None
    assert 0 < artifacts.stored.iteration < 100_000
    again = await pool.client.artifacts("long")
    assert again.stored.due > artifacts.stored.due

    executor = next(name for name in pool.pids() if name.startswith("executor"))
    await pool.client.cancel("long")
    await pool.kill(executor)  # whatever it has done so far
    job = await once_stored(pool, "long")
    assert job.phase is Phase.CANCELLED
    assert job.artifacts.model_iteration == again.stored.iteration
    fetched = await fetch_with(pool.client, "long", folder, "torch")
    assert fetched.model is not None
    assert torch.load(fetched.model, weights_only=True)
