"""The examples learn."""

import re

import pytest

from elasticflow.shared.messages.worker_protocol.from_worker import Finished
from examples.digits import Digits
from examples.text import Text
from examples.wine import Wine
from tests.support.rings import few_daily
from tests.support.trained_jobs import script, train

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(
    ("job", "num_workers", "metric", "at_least"),
    [
        (Digits().term_condition(metric_conditions={"accuracy": (">=", 0.95)}), 2, "accuracy", 0.95),
        (Wine().term_condition(max_iterations=25), 1, "accuracy", 0.9),
        (Text().term_condition(max_iterations=25), 1, "held_out_loss", 2.0),
    ],
)
async def test_example_learns(node, job, num_workers, metric, at_least):
    spec = job.set_deadline(within=600).spec()
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=num_workers)
    finished = await workers.first(Finished)
    assert finished.metrics[metric] >= at_least
    assert finished.metrics["loss"] < 3.5  # a byte costs 5.5 nats before training
    await workers.ended()


@pytest.mark.parametrize(
    ("name", "library", "batch_size", "result", "least", "most"),
    few_daily(
        [
            ("lora", "peft", 32, "held-out loss", 0.0, 5.4),
            ("accelerate_loop", "accelerate", 150, "accuracy", 0.9, 1.0),
            ("lightning_module", "pytorch_lightning", 150, "accuracy", 0.9, 1.0),
            ("trainer", "transformers", 32, "held-out loss", 0.0, 3.2),
        ],
        3,
    ),
)
async def test_example_with_a_library_learns(library_node, spec_of, name, library, batch_size, result, least, most):
    pytest.importorskip(library)
    job_id = library_node.new_job_id()
    spec = script(spec_of, name=f"examples.libraries.{name}", global_batch_size=batch_size, until=100)
    await train(library_node, spec, job_id=job_id, num_workers=2)
    (printed,) = re.findall(rf"{result} ([0-9.]+)", library_node.log_of(job_id))
    assert least <= float(printed) <= most
