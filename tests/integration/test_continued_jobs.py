"""A job begins from the checkpoint of an ended one, on a real pool: `eflow submit --from` (docs/adr/0114)."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.state.job import Phase
from testbed.command_line import CommandLinePool
from testbed.real_pool import RunningPool, job, running_pool
from testbed.terminal_user import User
from tests.support.executor_process import ROOT
from tests.support.namespaces import skip_without_namespaces

SUBMIT = ("submit", "line.py", "--deadline", "300s", "--name", "han", "--iterations", "100")


async def fail(cli: CommandLinePool, *, generation: int, saved: int) -> None:
    """The job is placed, trains up to a checkpoint, and fails."""
    await cli.place("han", "node-0:0", generation=generation)
    of_job = {"job_id": "han", "generation": generation, "at_s": cli.now_s}
    await cli.append(
        events.JobFailed(**of_job, error="boom", iteration=saved + 3),
        events.WorkersStopped(**of_job, node_id="node-0", iteration=saved),
    )


async def test_a_command_that_continues_its_own_name_starts_no_third_job_by_itself(cli: CommandLinePool) -> None:
    assert (await cli.eflow(*SUBMIT)).status == 0
    await fail(cli, generation=1, saved=40)
    continued = await cli.eflow(*SUBMIT, "--from", "han")
    assert continued.status == 0, continued.out + continued.err
    assert continued.err == (
        "it begins from the checkpoint of iteration 40 of han\nhan failed at iteration 43; this job asks for its name\n"
    )
    (job,) = (await cli.eflow("jobs", "--json")).value
    assert (job["iteration"], job["max_iterations"]) == (40, 100)
    await fail(cli, generation=3, saved=60)
    repeated = await cli.eflow(*SUBMIT, "--from", "han")
    assert repeated.status == 1
    assert "failed    han: boom" in repeated.out
    again = await cli.eflow(*SUBMIT, "--from", "han", "--again")
    assert again.status == 0, again.out + again.err
    (job,) = (await cli.eflow("jobs", "--json")).value
    assert job["iteration"] == 60


TRAIN = """
import torch

from elasticflow import ElasticJob


class Han(ElasticJob):
    hyperparameters = {"global_batch_size": 8, "learning_rate": 0.01}
    model_name = "steps"
    virtual_nodes = 2

    def init_model(self):
        return torch.nn.Linear(4, WIDTH)

    def init_dataset(self):
        points = torch.ones(64, 4)
        return torch.utils.data.TensorDataset(points, points.sum(1, keepdim=True).expand(-1, WIDTH))

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.hyperparameters["learning_rate"])

    def train(self, batch, model, optimizer):
        print("step", self.iteration)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss
"""


@pytest.mark.asyncio(loop_scope="session")
async def test_a_job_with_changed_code_has_the_virtual_nodes_of_the_job_that_it_continues(
    session_pool: RunningPool, tmp_path: Path
) -> None:
    """Its speed is measured anew, and so would be the best number of them."""
    file, user = tmp_path / "leia.py", User(session_pool, tmp_path)
    open_code = re.sub("    (model_name|virtual_nodes) = .*\n", "", TRAIN).replace("WIDTH", "1")
    submit = ("elasticflow", "submit", str(file), "--deadline", "1h", "--wait")
    ended = dict[str, int]()
    for name, code, more in (
        ("leia", open_code, ("--iterations", "20")),
        ("leia-mended", f"{open_code}\n# mended\n", ("--iterations", "40", "--from", "leia")),
        ("leia-tuned", open_code, ("--iterations", "60", "--from", "leia-mended", "--set", "learning_rate=0.02")),
        ("leia-new", f"{open_code}\nSEED = 1\n", ("--iterations", "80", "--from", "leia-tuned")),
    ):
        file.write_text(code)
        ran = await user.python(*submit, "--name", name, *more)
        assert ran.status == 0, ran.out + ran.err
        job = (await session_pool.ended([name])).ended_jobs[name]
        ended[name] = job.num_virtual_nodes
    assert len(set(ended.values())) == 1, ended
    assert ended["leia"] not in (0, 8), "the measured number is not the default"


@pytest.mark.asyncio(loop_scope="session")
async def test_a_finished_job_is_continued_under_another_name_and_under_its_own(
    session_pool: RunningPool, tmp_path: Path
) -> None:
    pool, file = session_pool, tmp_path / "han.py"
    user = User(pool, tmp_path)
    file.write_text(TRAIN.replace("WIDTH", "1"))
    submit = ("elasticflow", "submit", str(file), "--deadline", "1h", "--wait")

    async def steps_of(job_id: str) -> list[int]:
        logs = await user.eflow("logs", job_id)
        return sorted({int(step) for step in re.findall(r"step (\d+)", logs.out)})

    first = await user.python(*submit, "--name", "source", "--iterations", "30")
    assert first.status == 0, first.out + first.err
    file.write_text(TRAIN.replace("WIDTH", "1") + "\n# mended\n")
    second = await user.python(*submit, "--name", "longer", "--iterations", "50", "--from", "source")
    assert second.status == 0, second.out + second.err
    assert "it begins from the checkpoint of iteration 30 of source" in second.err
    assert await steps_of("longer") == list(range(30, 50))
    explained = await user.eflow("explain", "longer")
    assert "50 iterations of 8 samples from iteration 30 of source on" in explained.out
    assert "from iteration 30" in explained.out

    third = await user.python(*submit, "--name", "longer", "--iterations", "70", "--from", "longer", "--again")
    assert third.status == 0, third.out + third.err
    assert "longer finished at iteration 50; this job asks for its name" in third.err
    assert await steps_of("longer") == list(range(50, 70))
    ended = (await pool.ended(["longer"])).ended_jobs["longer"]
    assert (ended.phase, ended.iteration) == (Phase.FINISHED, 70)

    for more, said in {
        ("--from", "nobody"): "unknown job 'nobody'",
        ("--from", "longer@71"): "longer has no checkpoint of iteration 71: its newest checkpoint is of iteration 70",
        ("--from", "longer@x"): "longer has no checkpoint of iteration x",
        ("--from", "longer", "--pools", "a,b"): "a checkpoint is in one pool",
        ("--from", "longer", "--sweep", "learning_rate=0.1,0.2"): "one job continues another one",
    }.items():
        refused = await user.python(*submit, "--iterations", "90", "--name", "refused", *more)
        assert refused.status == (1 if "nobody" in more else 2), more
        assert said in refused.err
    done = await user.python(*submit, "--iterations", "70", "--name", "done", "--from", "longer")
    assert done.status == 1
    assert "70 are done already in the checkpoint of iteration 70 of longer; choose more" in done.out
    lost = await user.python(*submit, "--iterations", "90", "--name", "lost", "--from", "longer@3")
    assert lost.status == 1
    assert "no checkpoint of iteration 3 of longer is on this node: take --from longer@" in lost.out
    file.write_text(TRAIN.replace("WIDTH", "2"))
    other = await user.python(*submit, "--iterations", "90", "--name", "other", "--from", "longer")
    assert other.status == 1
    assert "the checkpoint of iteration 70 of longer does not fit this job: weight is torch.float32 [2, 4]" in other.out
    await pool.ended(["lost", "other"])
    await pool.ledger()


async def test_isolated_workers_read_what_their_executor_has_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_namespaces()
    monkeypatch.setenv("EF_ISOLATION", "required")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the function: workers do not see the working directory
    async with running_pool(tmp_path, num_nodes=1, replicas={}) as pool:
        await pool.acknowledged(job(max_iterations=20), "source")
        await pool.ended(["source"])
        continued = await pool.client.continued("source")
        assert (continued.iteration, continued.is_exact) == (20, False)
        await pool.acknowledged(replace(job(max_iterations=40), continues=continued), "longer")
        ended = (await pool.ended(["longer"])).ended_jobs["longer"]
        assert (ended.phase, ended.iteration) == (Phase.FINISHED, 40), ended.explanation
        told = [entry.text for entry in await pool.client.history("longer")]
        assert any("trains on 1 GPU from iteration 20" in text for text in told), told
