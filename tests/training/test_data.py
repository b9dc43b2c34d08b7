"""What real workers read from each kind of data set, while workers join, leave and are killed."""

from importlib.util import find_spec

import pytest

from elasticflow.shared.messages.worker_protocol.from_worker import (
    ExitCode,
    Finished,
    Interrupted,
    Progressed,
)
from tests.support.rings import few_daily
from tests.support.trained_jobs import all_switched, weights_of
from tests.training.test_failures import failure_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

NEEDS_WEBDATASET = pytest.mark.skipif(find_spec("webdataset") is None, reason="webdataset is not installed")
FROM_SHARDS = pytest.param("FromShards", marks=NEEDS_WEBDATASET)
FUNCTIONS = few_daily(["FromFiles", "FromAStream", "InPartitions", "FromAnUnsizedStream", FROM_SHARDS], 2)
LAST = 75  # iterations of 16 samples: 25 batches are 8 epochs of 50


def assert_each_sample_once_an_epoch(record) -> None:
    """A repeated step records its samples again: the same part, with the same bits of noise."""
    seen: dict[int, set[str]] = {}
    for file in record.iterdir():
        for line in file.read_text().splitlines():
            iteration, part = line.split(maxsplit=1)
            seen.setdefault(int(iteration), set()).add(part)
    assert sorted(seen) == list(range(LAST))
    for start in range(0, LAST, 25):
        parts = [part.split()[:-1] for i in range(start, start + 25) for part in seen[i]]
        assert sorted(int(n) for part in parts for n in part) == sorted(list(range(50)) * 8)


@pytest.mark.parametrize("function", FUNCTIONS)
async def test_each_sample_once_an_epoch_and_the_same_bits_through_a_resize_and_a_kill(
    node, spec_of, tmp_path, slow_down, function
):
    """Compared with one worker that reads by itself."""
    (record := tmp_path / "record").mkdir()
    settings = {"slow_down": str(slow_down), "record": str(record)}
    spec = spec_of(function, max_iterations=LAST, hyperparameters=settings)
    job_id = node.new_job_id()
    workers = await node.launch(spec, job_id=job_id)
    await workers.first(Progressed)
    before = await node.switch_generation(workers, [0, None, None])
    await all_switched(before, [0, None, None])
    before.workers[1].kill()
    for rank in (0, 2):
        await before.first(Interrupted, rank)
    after = await node.switch_generation(before, [2, 0], lost=[1])
    await all_switched(after, [2, 0])
    slow_down.unlink()
    assert (await after.first(Finished)).iteration == LAST
    assert {exit_.code for exit_ in (await after.ended()).values()} == {ExitCode.DONE}
    assert_each_sample_once_an_epoch(record)
    assert "reading_ahead_ended" not in node.log_of(job_id)

    alone = node.new_job_id()
    undisturbed = await node.launch(spec_of(f"{function}ReadHere", max_iterations=LAST), job_id=alone)
    await undisturbed.ended()
    moved, undisturbed = (weights_of(node, each) for each in (job_id, alone))
    assert moved.equal(undisturbed)


async def test_a_file_with_a_missing_sample_is_named(node, spec_of):
    failed, _ = await failure_of(node, spec_of("FromATornFile", max_iterations=LAST))
    assert "partition 4 of the data set ended after 9 samples, but it should have 10" in failed.error


async def test_data_that_changed_between_two_starts_fail_the_job(node, spec_of):
    job_id = node.new_job_id()
    spec = spec_of("OfAnySize", hyperparameters={"num_samples": 40})
    first = await node.launch(spec, job_id=job_id)
    await first.ended()
    other = spec_of("OfAnySize", max_iterations=20, hyperparameters={"num_samples": 41})
    failed, _ = await failure_of(node, other, job_id=job_id, generation=2, checkpoint_iteration=10)
    assert failed.error.startswith("the data set has 41 samples, but it had 40 when the job began: ")
