"""A real pool loses power in each phase of a job, comes back, and keeps its promise."""

import pytest

from benchmarks.live_power_losses import strike
from testbed.power_losses import PHASES


@pytest.mark.nightly("pools of a minute or two each; tests/simulation/test_power_losses.py has five seeds each day")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_strikes", [1, 2])
@pytest.mark.parametrize("phase", PHASES)
async def test_its_promise_is_kept(tmp_path, phase, num_strikes):
    struck = await strike(tmp_path / "pool", phase, 0, num_strikes=num_strikes)
    assert struck.is_kept, struck.explanation
