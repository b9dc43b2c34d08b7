"""The examples learn."""

import pytest

from elasticflow.shared.messages.worker_protocol.from_worker import Finished
from examples.digits import Digits
from examples.text import Text
from examples.wine import Wine

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
