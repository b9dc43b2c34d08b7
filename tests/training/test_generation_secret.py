"""A hostile process on the ports of workers that know a secret changes nothing in their training."""

import pytest
import torch

from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode, Progressed, Started
from tests.support.hostile_peers import hostile_process, listening_ports
from tests.support.trained_jobs import all_switched, weights_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRETS = ("ab" * 32, "cd" * 32)


async def test_rubbish_on_the_ports_of_workers_leaves_their_weights_and_their_switch_as_they_are(
    node, spec_of, slow_down
):
    alone, attacked = node.new_job_id(), node.new_job_id()
    undisturbed = await node.launch(spec_of("Points", max_iterations=100), job_id=alone)
    assert {end.code for end in (await undisturbed.ended()).values()} == {ExitCode.DONE}
    spec = spec_of("Points", max_iterations=100, hyperparameters={"slow_down": str(slow_down)})
    before = await node.launch(spec, job_id=attacked, num_workers=2, secret=SECRETS[0])
    await before.first(Started)
    ports = [port for worker in before.workers.values() for port in listening_ports(worker.pid)]
    assert len(ports) >= 3, "the store, and gloo of each worker"
    with hostile_process(*ports):
        await before.first(Progressed)
        after = await node.switch_generation(before, [0, 1, None], secret=SECRETS[1])
        await all_switched(after, [0, 1, None])
        slow_down.unlink()
        ends = await after.ended()
    assert {end.code for end in ends.values()} == {ExitCode.DONE}, node.log_of(attacked)
    torch.testing.assert_close(weights_of(node, attacked), weights_of(node, alone), rtol=0.0, atol=0.0)
