"""Training libraries with their own loop: the same bits at any number of workers, and those of the library alone."""

import json
import sys
from asyncio.subprocess import create_subprocess_exec
from importlib.util import find_spec

import pytest
import torch

from elasticflow.services.executor.worker.data.sample_order import Partitions, SampleOrder
from elasticflow.shared.messages.worker_protocol.from_worker import Failed, Interrupted, Progressed
from tests.support.trained_jobs import all_switched, checkpoint_of, end_of, script, slow_down_script, switch, train
from tests.support.user_code import library_scripts
from tests.support.user_code.library_scripts import BATCH_SIZE, LAST, NUM_SAMPLES

pytestmark = pytest.mark.asyncio(loop_scope="session")

PACKAGES = {
    "transformers": "transformers",
    "peft": "peft",
    "accelerate": "accelerate",
    "lightning": "pytorch_lightning",
}
LIBRARIES = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed"))
    for name, package in PACKAGES.items()
]


def library_script(spec_of, library: str, *words: str):
    name = "library_scripts"
    return script(spec_of, library, *words, name=name, global_batch_size=BATCH_SIZE, until=2 * LAST)


@pytest.mark.parametrize("library", LIBRARIES)
async def test_resizes_a_crash_and_a_restart_do_not_change_the_bits(node, spec_of, library):
    spec = library_script(spec_of, library)
    job_id = node.new_job_id()
    undisturbed = await train(node, spec, job_id=job_id)
    ended = f"trained {LAST} steps, rate "
    assert ended in node.log_of(job_id)

    job_id = node.new_job_id()
    slow_down = slow_down_script(node, job_id)
    workers = await node.launch(spec, job_id=job_id, num_workers=2)
    await workers.first(Progressed)
    workers = await switch(node, workers, [0, 1, None], [2, 0])
    workers.workers[1].kill()
    await workers.first(Interrupted, 0)
    workers = await node.switch_generation(workers, [0], lost=[1])
    await all_switched(workers, [0])
    workers.stop()
    await workers.ended()
    workers = await node.launch(spec, job_id=job_id, num_workers=3, generation=5)
    await workers.first(Progressed)
    slow_down.unlink()
    assert await end_of(node, workers) == undisturbed
    assert all(ended in node.log_of(job_id, generation=5, rank=rank) for rank in range(3))


@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_data_set_without_a_length_gives_the_same_bits_on_three_workers(node, spec_of, library):
    ends = {"max_steps": -1, "max_epochs": LAST * BATCH_SIZE // NUM_SAMPLES} if library == "lightning" else {}
    settings = {"is_stream": True, **ends}
    spec = library_script(spec_of, library, "0", json.dumps(settings))
    job_id = node.new_job_id()
    alone = await train(node, spec, job_id=job_id)
    assert f"trained {LAST} steps, rate " in node.log_of(job_id)
    assert await train(node, spec, num_workers=3) == alone


@pytest.mark.parametrize(
    ("library", "settings"), [("transformers", {}), ("accelerate", {}), ("lightning", {"interval": "step"})]
)
async def test_one_virtual_node_makes_what_the_library_makes_alone(node, spec_of, library, settings, tmp_path):
    """Bit for bit, on the samples in the job's order; without dropout, whose random numbers follow from the job."""
    pytest.importorskip(PACKAGES[library])
    job_id = node.new_job_id()
    await train(node, library_script(spec_of, library, "1", json.dumps(settings)), job_id=job_id)
    model = checkpoint_of(node, job_id)["model"]
    trained = {name.removeprefix("made."): value for name, value in model.items()}  # within a Lightning module
    order = SampleOrder(
        seed=0,
        partitions=Partitions([NUM_SAMPLES]),
        global_batch_size=BATCH_SIZE,
        num_lanes=1,
        window_size=NUM_SAMPLES,
    )
    samples = json.dumps(order.samples(0, LAST * BATCH_SIZE).tolist())
    alone = f"s.in_order({library!r}, {samples}, **{settings})"
    code = f"import torch, {library_scripts.__name__} as s; torch.save({alone}, 'alone.pt')"
    process = await create_subprocess_exec(sys.executable, "-c", code, cwd=tmp_path)
    assert await process.wait() == 0
    alone = torch.load(tmp_path / "alone.pt")
    assert [name for name in alone if not torch.equal(trained[name], alone[name])] == []


@pytest.mark.parametrize(
    ("library", "settings", "error"),
    [
        ("transformers", {"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is not supported"),
        ("transformers", {"include_num_input_tokens_seen": True}, "a worker sees a part of the tokens; remove it"),
        ("accelerate", {"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is not supported"),
        ("lightning", {"accumulate_grad_batches": 4}, "accumulate_grad_batches is not supported"),
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
