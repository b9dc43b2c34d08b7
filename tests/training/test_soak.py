"""Switches, losses and stops leave nothing behind: no process, thread, descriptor, port or shared memory.

A few here; `python -m benchmarks.engine.soak` runs five hundred and measures memory as well.
"""

import pytest

from benchmarks.engine.soak import soak


@pytest.mark.nightly("a soak says little in a minute")
async def test_the_resources_of_the_engine_do_not_grow():
    result = await soak(10, seed=3, virtual_nodes=4)
    assert result["processes_left"] == 0
    for who, weights in result["at_rest"].items():
        before, after = ({**weights[when], "memory_mib": 0} for when in ("before", "after"))
        assert {what: number for what, number in after.items() if number > before[what]} == {}, who
