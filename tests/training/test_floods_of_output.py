"""Workers that write without measure have bounded logs, and lose nothing that is behind the bound."""

import pytest

from elasticflow.client.worker_logs import LogReader
from elasticflow.services.executor.processes.job_logs import MAX_LOG_BYTES
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode, Finished
from elasticflow.shared.runtime.process.files import BLOCK_BYTES
from tests.support.holes import skip_without_holes
from tests.support.task_runners import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

FLOODS = "testbed.user_code.tiny_jobs:Floods"


async def test_the_log_of_a_worker_keeps_its_newest_output(node, spec_of):
    skip_without_holes(node.folder)
    job_id, num_iterations = node.new_job_id(), 4
    workers = await node.launch(spec_of(FLOODS, max_iterations=num_iterations), job_id=job_id)
    await workers.first(Finished)
    ended = await workers.ended()
    assert ended[0].code == ExitCode.DONE
    log_file = node.launcher.log_file(job_id, 1, 0)
    max_bytes = MAX_LOG_BYTES + 2 * BLOCK_BYTES
    assert max_bytes < num_iterations * 100_000 * 100
    await until(lambda: log_file.stat().st_blocks * 512 <= max_bytes)
    lines = [line.partition(" | ")[2] for line in LogReader(log_file.parent, 0).new_lines(to_the_end=True)]
    numbers = [int(line) for line in lines if line.isdecimal()]
    assert numbers == list(range(numbers[0], num_iterations * 100_000))
