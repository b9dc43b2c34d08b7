"""No promise is broken by power losses in any phase of a job, if time would still keep it.

EF_POWER_LOSS_SEEDS is the number of seeds, of which each day has one for each phase.
"""

import os

import pytest

from testbed.power_losses import PHASES, PowerLosses, broken, run
from tests.support.rings import few_daily

SEEDS = range(int(os.environ.get("EF_POWER_LOSS_SEEDS", "200")))
DAILY = (35, 26, 57, 18, 14)  # everything, a node and all nodes; one machine and several; once and twice
OTHERS = [seed for seed in SEEDS if seed not in DAILY]


@pytest.mark.parametrize("seed", few_daily([*DAILY, *OTHERS], len(DAILY)))
def test_no_promise_is_broken(seed: int) -> None:
    losses = PowerLosses.of_seed(seed)
    assert list(broken(run(losses))) == [], losses


def test_each_day_has_each_phase() -> None:
    assert {PowerLosses.of_seed(seed).phase for seed in DAILY} == set(PHASES)
