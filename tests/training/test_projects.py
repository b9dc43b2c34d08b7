"""Whole projects, with callbacks, histories and timers: they learn and show the same, whatever happens to their
workers."""

import json
import re
import sys
from asyncio.subprocess import create_subprocess_exec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticflow.shared.messages.worker_protocol.from_worker import Failed, Interrupted, Progressed, Warned
from testbed.user_code import projects
from testbed.user_code.projects import BATCH_SIZE, LAST
from testbed.worker_nodes import Node
from tests.support.rings import few_daily
from tests.support.trained_jobs import (
    LAST_GENERATION,
    all_switched,
    end_of,
    files_of,
    script,
    slow_down_script,
    train,
    train_disturbed,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

PACKAGES = {"trainer": "transformers", "module": "pytorch_lightning", "loop": "torch"}
PROJECTS = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed"))
    for name, package in PACKAGES.items()
]


@pytest.fixture
def node(library_node: Node) -> Node:
    return library_node


def project(spec_of, *words: str):
    return script(spec_of, *words, name="projects", global_batch_size=BATCH_SIZE, until=LAST)


def seen_in(text: str) -> list[dict[str, Any]]:
    """What each process showed at its end."""
    return [json.loads(line.partition("SEEN ")[2]) for line in text.splitlines() if line.startswith("SEEN ")]


def logs_of(node: Node, job_id: str, generation: int, num_workers: int) -> str:
    return "".join(node.log_of(job_id, generation=generation, rank=rank) for rank in range(num_workers))


def model_of(node: Node, job_id: str) -> dict[str, torch.Tensor]:
    return torch.load(files_of(node, job_id) / "model.pt")


@pytest.mark.parametrize("name", PROJECTS)
async def test_a_project_learns_and_shows_the_same_through_resizes_a_crash_and_a_restart(node, spec_of, name):
    """Code behind a library's loop runs once. Nothing here depends on the part of a batch, but for timers."""
    job_id, disturbed = node.new_job_id(), node.new_job_id()
    await train(node, project(spec_of, name), job_id=job_id)
    workers = await train_disturbed(node, project(spec_of, name), disturbed)
    await end_of(node, workers)
    (alone,), among_three = seen_in(node.log_of(job_id)), seen_in(logs_of(node, disturbed, LAST_GENERATION, 3))
    assert among_three == [alone]
    mine, other = model_of(node, job_id), model_of(node, disturbed)
    assert [key for key in mine if not torch.equal(mine[key], other[key])] == []
    of_timers = {"loop.end", "loop.timed", "loop.took", "loop.epoch_began"}  # which no two workers measure alike
    named = {name for warned in workers.all_of(Warned) for name in re.findall(r"__main__:([\w.]+)", warned.warning)}
    assert named <= (of_timers if name == "loop" else set())


async def test_what_an_interrupted_step_validates_decides_nothing(node, spec_of):
    """A survivor ends the last pass of an epoch with gradients of its own, and validates a model that no step made."""
    pytest.importorskip("pytorch_lightning")
    job_id, disturbed = node.new_job_id(), node.new_job_id()
    await train(node, project(spec_of, "module"), job_id=job_id)
    slow_down = slow_down_script(node, disturbed)
    workers = await node.launch(project(spec_of, "module"), job_id=disturbed, num_workers=2)
    await workers.first(Progressed)
    (files_of(node, disturbed) / "die").touch()
    await workers.first(Interrupted)
    (survivor,) = (rank for rank, event in workers.events if isinstance(event, Interrupted))
    workers = await node.switch_generation(workers, [survivor], lost=[1 - survivor])
    await all_switched(workers, [survivor])
    slow_down.unlink()
    await end_of(node, workers)
    mine = logs_of(node, disturbed, 1, 2)
    assert seen_in(mine) == seen_in(node.log_of(job_id))


@pytest.mark.parametrize("name", few_daily(PROJECTS, 1))
async def test_a_project_in_one_virtual_node_learns_and_shows_what_it_does_alone(node, spec_of, name, tmp_path):
    job_id = node.new_job_id()
    await train(node, project(spec_of, name, "1"), job_id=job_id)
    with (tmp_path / "log").open("w") as log:
        process = await create_subprocess_exec(
            sys.executable, str(Path(projects.__file__)), name, "1", cwd=tmp_path, stdout=log
        )
        assert await process.wait() == 0
    (alone,) = seen_in((tmp_path / "log").read_text())
    assert seen_in(node.log_of(job_id)) == [alone]
    mine, other = model_of(node, job_id), torch.load(tmp_path / "model.pt")
    assert [key for key in mine if not torch.equal(mine[key], other[key])] == []


@pytest.mark.parametrize(
    ("what", "error"),
    few_daily(
        [
            ("stopping", 'EarlyStopping with monitor="loss_epoch" is not supported in an elastic job'),
            ("best", 'ModelCheckpoint with monitor="loss" is not supported in an elastic job: the trainer saves no'),
            ("timer", "Timer is not supported in an elastic job: the end of the training would depend on the speed"),
            ("tracker", "log_with is not supported in an elastic job: every worker would report"),
        ],
        2,
    ),
)
async def test_what_would_depend_on_the_workers_is_refused(node, spec_of, what, error):
    pytest.importorskip("pytorch_lightning")
    workers = await node.launch(project(spec_of, f"refused {what}"), job_id=node.new_job_id())
    failed = await workers.first(Failed)
    await workers.ended()
    assert error in failed.error
