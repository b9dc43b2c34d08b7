"""In a step the host of a worker waits once for its device, before the optimizer's step, which needs the peers' data.

The metrics that it reads afterwards are those of the step before, so they are there.
"""

import pytest

from elasticflow.shared.messages.job_spec import MetricCondition
from tests.support.trained_jobs import train
from tests.training.conftest import IS_ASYNCHRONOUS

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 8  # iterations
FIRST = 2  # torch's reducer exchanges its buckets before


@pytest.mark.skipif(IS_ASYNCHRONOUS, reason="it counts the waits of gloo")
@pytest.mark.parametrize("name", ["Plain", "Fast", "Normalized"])
@pytest.mark.parametrize(("num_workers", "data"), [(1, []), (2, ["data"])])
async def test_a_step_waits_once_and_reads_the_metrics_of_the_step_before(
    node, spec_of, tmp_path, name, num_workers, data
):
    spec = spec_of(f"host_waits:{name}", max_iterations=LAST, hyperparameters={"record": str(tmp_path)})
    await train(node, spec, num_workers=num_workers)
    files = list(tmp_path.iterdir())
    assert len(files) == num_workers
    for file in files:
        _, *steps = file.read_text().split(f"train {FIRST - 1}\n")[-1].split("train ")
        waits = {int(text.split()[0]): text.splitlines()[1:] for text in steps if text.splitlines()[1:]}
        assert waits == {
            **{k: [*data, "step", f"metrics {k - 1}"] for k in range(FIRST, LAST - 1)},
            LAST - 1: [*data, "step", f"metrics {LAST - 2}", f"metrics {LAST - 1}"],
        }


async def test_a_job_with_a_condition_on_its_metrics_reads_them_in_their_own_step(node, spec_of, tmp_path):
    never = MetricCondition(metric="loss", comparison="<=", value=-1.0)
    spec = spec_of(
        "host_waits:Plain",
        max_iterations=LAST,
        hyperparameters={"record": str(tmp_path)},
        metric_conditions=(never,),
    )
    await train(node, spec, num_workers=2)
    for file in tmp_path.iterdir():
        reads = [line for line in file.read_text().splitlines() if line.startswith("metrics")]
        assert reads == [f"metrics {k}" for k in range(LAST)]
