"""Training libraries with their own loop: the same bits at any number of workers, and those of the library alone."""

import json
import sys
from asyncio.subprocess import create_subprocess_exec
from importlib.util import find_spec

import pytest
import torch

from elasticflow.shared.messages.worker_protocol.from_worker import Failed
from testbed.user_code import library_scripts
from testbed.user_code.library_scripts import BATCH_SIZE, LAST, NUM_SAMPLES
from testbed.worker_nodes import Node
from tests.support.rings import few_daily
from tests.support.trained_jobs import LAST_GENERATION, checkpoint_of, end_of, script, train, train_disturbed

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def node(library_node: Node) -> Node:
    return library_node


PACKAGES = {
    "transformers": "transformers",
    "accelerate": "accelerate",
    "peft": "peft",
    "lightning": "pytorch_lightning",
}
LIBRARIES = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed"))
    for name, package in PACKAGES.items()
]


def library_script(spec_of, library: str, *words: str, until: int = 2 * LAST):
    name = "library_scripts"
    return script(spec_of, library, *words, name=name, global_batch_size=BATCH_SIZE, until=until)


@pytest.mark.parametrize("library", few_daily(LIBRARIES, 2))
async def test_resizes_a_crash_and_a_restart_do_not_change_the_bits(node, spec_of, library):
    spec = library_script(spec_of, library)
    job_id = node.new_job_id()
    undisturbed = await train(node, spec, job_id=job_id)
    ended = f"trained {LAST} steps, rate "
    assert ended in node.log_of(job_id)

    job_id = node.new_job_id()
    workers = await train_disturbed(node, spec, job_id)
    assert await end_of(node, workers) == undisturbed
    shown = [ended in node.log_of(job_id, generation=LAST_GENERATION, rank=rank) for rank in range(3)]
    assert sum(shown) == 1, "what follows the loop runs once"


@pytest.mark.parametrize("library", few_daily(LIBRARIES, 1))
async def test_a_data_set_without_a_length_gives_the_same_bits_on_three_workers(node, spec_of, library):
    ends = {"max_steps": -1, "max_epochs": LAST * BATCH_SIZE // NUM_SAMPLES} if library == "lightning" else {}
    settings = {"is_stream": True, **ends}
    spec = library_script(spec_of, library, "0", json.dumps(settings))
    job_id = node.new_job_id()
    alone = await train(node, spec, job_id=job_id)
    assert f"trained {LAST} steps, rate " in node.log_of(job_id)
    assert await train(node, spec, num_workers=3) == alone


@pytest.mark.parametrize(
    ("library", "settings", "in_job"),
    [
        ("transformers", {}, {"per_device_train_batch_size": 7, "gradient_accumulation_steps": 3}),
        ("accelerate", {}, {"gradient_accumulation_steps": 3}),
        ("lightning", {"interval": "step"}, {"interval": "step", "accumulate_grad_batches": 3}),
    ],
)
async def test_one_virtual_node_makes_what_the_library_makes_alone(node, spec_of, library, settings, in_job, tmp_path):
    """Bit for bit; without dropout, whose random numbers follow from the job. Accumulation changes nothing."""
    pytest.importorskip(PACKAGES[library])
    job_id = node.new_job_id()
    await train(node, library_script(spec_of, library, "1", json.dumps(in_job)), job_id=job_id)
    assert "=3 is replaced by 1: a step has a global batch of --batch 21 samples" in node.log_of(job_id)
    model = checkpoint_of(node, job_id)["model"]
    trained = {name.removeprefix("made."): value for name, value in model.items()}  # within a Lightning module
    samples = json.dumps([position % NUM_SAMPLES for position in range(LAST * BATCH_SIZE)])
    alone = f"s.in_order({library!r}, {samples}, **{settings})"
    code = f"import torch, {library_scripts.__name__} as s; torch.save({alone}, 'alone.pt')"
    process = await create_subprocess_exec(sys.executable, "-c", code, cwd=tmp_path)
    assert await process.wait() == 0
    alone = torch.load(tmp_path / "alone.pt")
    assert [name for name in alone if not torch.equal(trained[name], alone[name])] == []


@pytest.mark.parametrize(
    ("library", "settings", "messages"),
    [
        (
            "transformers",
            {"max_steps": -1, "num_train_epochs": 40, "per_device_train_batch_size": 7},
            ["plans 120 steps, but the job ends after --iterations 40", "trained 40 steps, rate 0.000000"],
        ),
        (
            "lightning",
            {"interval": "one cycle", "max_epochs": 40, "max_steps": -1},
            ["3 batches an epoch, 40 steps", "trained 40 steps, rate 0.000031"],
        ),
    ],
)
async def test_a_librarys_schedule_is_built_for_the_jobs_steps(node, spec_of, library, settings, messages):
    """40 epochs of 50 samples in batches of 21 are more than the job's 40 iterations."""
    pytest.importorskip(PACKAGES[library])
    job_id = node.new_job_id()
    await train(node, library_script(spec_of, library, "0", json.dumps(settings), until=40), job_id=job_id)
    assert [message for message in messages if message not in node.log_of(job_id)] == []


@pytest.mark.parametrize(
    ("library", "settings", "error"),
    [
        ("transformers", {"include_num_input_tokens_seen": True}, "a worker sees a part of the tokens; remove it"),
        (
            "accelerate",
            {"t_max": 192},
            f"is built for 192 steps, but the job takes {LAST}, with global batches of 21",
        ),
        ("lightning", {"val_check_interval": 2}, "set check_val_every_n_epoch"),
    ],
)
async def test_what_an_adapter_does_not_support_fails_the_job_at_once(node, spec_of, library, settings, error):
    pytest.importorskip(PACKAGES[library])
    spec = library_script(spec_of, library, "0", json.dumps(settings))
    workers = await node.launch(spec, job_id=node.new_job_id())
    failed = await workers.first(Failed)
    await workers.ended()
    assert error in failed.error
