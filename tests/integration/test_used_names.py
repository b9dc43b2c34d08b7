"""The name of a job that has ended is used again: what `eflow` says, and what trains (docs/adr/0114)."""

import asyncio
import json
from pathlib import Path

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.state.job import Phase
from testbed.command_line import CommandLinePool
from testbed.real_pool import RunningPool
from testbed.terminal_user import User

SUBMIT = ("submit", "line.py", "--deadline", "300s", "--name", "han")
MENDED = (*SUBMIT, "--set", "lr=2")


async def fail(cli: CommandLinePool, *, generation: int, iteration: int = 40) -> None:
    """The job is placed, and fails."""
    await cli.place("han", "node-0:0", generation=generation)
    failed = events.JobFailed(job_id="han", generation=generation, error="boom", iteration=iteration, at_s=cli.now_s)
    stopped = events.WorkersStopped(job_id="han", generation=generation, node_id="node-0", at_s=cli.now_s)
    await cli.append(failed, stopped)


async def test_a_mended_job_takes_the_name_and_an_unchanged_one_only_if_it_is_asked_to(cli: CommandLinePool) -> None:
    assert (await cli.eflow(*SUBMIT)).status == 0
    await fail(cli, generation=1)
    unchanged = await cli.eflow(*SUBMIT)
    assert unchanged.status == 1
    assert "nothing was submitted now; to run it again: --again" in unchanged.out
    mended = await cli.eflow(*MENDED)
    assert (mended.status, mended.err) == (0, "han failed at iteration 40; this job asks for its name\n"), mended.out
    assert mended.out.startswith("admitted  han")
    repeated = await cli.eflow(*MENDED)
    assert repeated.status == 0
    assert "han was admitted already" in repeated.out
    assert repeated.err == ""
    await fail(cli, generation=3, iteration=7)
    third = await cli.eflow(*MENDED)
    assert third.status == 1, "a retry starts no third job by itself"
    assert "failed    han: boom" in third.out
    again = await cli.eflow(*MENDED, "--again")
    assert again.err == "han failed at iteration 7; this job asks for its name\n"
    assert again.status == 0

    explained = await cli.eflow("explain", "han")
    assert explained.out.count("submitted by default") == 1
    assert "the name is used again: its job failed at iteration 7; submitted by default" in explained.out
    assert "another job had the name han before; --earlier shows its" in explained.err
    everything = await cli.eflow("explain", "han", "--earlier")
    assert everything.out.count("submitted by default") == 3
    assert everything.err == ""
    assert json.loads((await cli.eflow("jobs", "--json")).out)[0]["iteration"] == 0
    report = (await cli.eflow("report", "--json")).value
    (row,) = [row for row in report["tenants"] if row["tenant"] == "default"]
    assert (row["num_admitted"], row["num_promised"], row["num_failed"], row["num_live"]) == (3, 3, 2, 1)


async def test_a_rejection_leaves_the_name_to_the_job_that_had_it(cli: CommandLinePool) -> None:
    assert (await cli.eflow(*SUBMIT)).status == 0
    assert (await cli.eflow("cancel", "han")).status == 0
    rejected = await cli.eflow(*SUBMIT, "--iterations", "100000")
    assert rejected.status == 1
    assert rejected.err == "han was cancelled; this job asks for its name\n"
    assert "the name han stays that of the job that had it" in rejected.out
    (job,) = (await cli.eflow("jobs", "--all", "--json")).value
    assert job["activity"] == "cancelled"


async def test_the_name_of_a_finished_job_is_taken_only_on_request(cli: CommandLinePool) -> None:
    assert (await cli.eflow(*SUBMIT)).status == 0
    await cli.place("han", "node-0:0")
    await cli.append(
        events.JobFinished(job_id="han", generation=1, iteration=100, condition="max_iterations", at_s=cli.now_s)
    )
    refused = await cli.eflow(*MENDED)
    assert refused.status == 1
    assert "submitted with other code or options and finished; han-2 is free" in refused.out
    assert "--again takes the name of an ended job of yours" in refused.out
    taken = await cli.eflow(*MENDED, "--again", "--detach")
    assert (taken.out, taken.err) == ("submitted han\n", "han finished at iteration 100; this job asks for its name\n")
    waited = await cli.eflow(*MENDED)
    assert "han was admitted already" in waited.out
    (job,) = (await cli.eflow("jobs", "--json")).value
    assert (job["job_id"], job["iteration"]) == ("han", 0)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--again",), "--again"),
        (("--again", "--name", "han", "--sweep", "lr=1,2"), "--again"),
        (("--again", "--name", "han", "--pools", "a,b"), "--again"),
    ],
)
async def test_the_option_is_for_one_job_with_a_name(cli: CommandLinePool, more: tuple[str, ...], said: str) -> None:
    ran = await cli.eflow("submit", "line.py", "--deadline", "300s", *more)
    assert ran.status == 2
    assert said in ran.err


TRAIN = """
import torch

from elasticflow import ElasticJob


class Han(ElasticJob):
    hyperparameters = {"global_batch_size": 8}
    max_iterations = 40
    model_name = "steps"
    reproducible = "fast"

    def init_model(self):
        return torch.nn.Linear(4, 1)

    def init_dataset(self):
        points = torch.ones(64, 4)
        return torch.utils.data.TensorDataset(points, points.sum(1, keepdim=True))

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def train(self, batch, model, optimizer):
        print("VERSION")
        (self.artifacts_folder / "VERSION.txt").write_text("VERSION")
        if "VERSION" == "broken" and self.iteration == 20:
            raise ValueError("as written")
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss
"""


@pytest.mark.asyncio(loop_scope="session")
async def test_a_script_that_failed_is_mended_and_trains_under_the_same_name(
    session_pool: RunningPool, tmp_path: Path
) -> None:
    pool, file = session_pool, tmp_path / "han.py"
    user = User(pool, tmp_path)
    submit = ("elasticflow", "submit", str(file), "--deadline", "1h", "--name", "han", "--tenant", "reuse", "--wait")
    file.write_text(TRAIN.replace("VERSION", "broken"))
    failed = await user.python(*submit)
    assert failed.status == 1
    assert "as written" in failed.out
    first = (await pool.ended(["han"])).ended_jobs["han"]
    assert first.phase is Phase.FAILED

    file.write_text(TRAIN.replace("VERSION", "mended"))
    mended = await user.python(*submit)
    assert "han failed at iteration 20; this job asks for its name" in mended.err
    assert mended.status == 0, mended.out + mended.err
    second = (await pool.ended(["han"])).ended_jobs["han"]
    assert (second.phase, second.iteration) == (Phase.FINISHED, 40)
    assert second.identity != first.identity

    logs = await user.eflow("logs", "han")
    assert "mended" in logs.out
    assert "broken" not in logs.out
    reader, stored = pool.client.stored_logs(second), list[str]()
    async with asyncio.timeout(60):
        while not reader.complete:
            stored += [line async for line in reader.new_lines(await pool.client.state())]
            await asyncio.sleep(0.1)  # nodes publish once a second
    written = {line.partition(" | ")[2] for line in stored}
    assert "mended" in written
    assert "broken" not in written
    fetched = await user.eflow("fetch", "han", "--to", str(tmp_path / "here"), "--tenant", "reuse")
    assert fetched.status == 0, fetched.out + fetched.err
    assert [each.name for each in (tmp_path / "here").rglob("*.txt")] == ["mended.txt"]
    assert "iteration 40" in fetched.out
    aside = pool.data_dir / "checkpoints" / f"han.of-{first.identity}"
    assert aside.is_dir(), "what the failed job had written is kept beside it"

    report = (await user.eflow("report", "--json")).value
    (row,) = [row for row in report["tenants"] if row["tenant"] == "reuse"]
    assert (row["num_admitted"], row["num_failed"], row["num_kept"]) == (2, 1, 1)
    await pool.ledger()
