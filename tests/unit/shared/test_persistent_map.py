"""Both kinds of persistent maps are dicts that keep their former selves."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.persistent_map import Map, MapOfRpds

ROOT = Path(__file__).parents[3]
KEYS = st.sampled_from("abcdef")
STEPS = st.lists(st.tuples(st.sampled_from(["set", "delete", "update", "mutate"]), KEYS, st.integers()))


@pytest.mark.parametrize("kind", [Map, MapOfRpds])
@given(steps=STEPS)
def test_a_map_is_a_dict_whose_earlier_states_stay(kind: Any, steps: list[tuple[str, str, int]]) -> None:
    present, known = kind(), {}
    earlier = []
    for step, key, value in steps:
        earlier.append((present, dict(known)))
        if step == "set":
            present, known[key] = present.set(key, value), value
        elif step == "update":
            present, known = present.update({key: value, "g": value}), known | {key: value, "g": value}
        elif step == "mutate":
            changed = present.mutate()
            assert changed.pop(key, None) == known.pop(key, None)
            changed["h"] = known["h"] = value
            assert (key in changed, changed.get(key, 7), changed["h"]) == (False, 7, value)
            del changed["h"], known["h"]
            present = changed.finish()
        elif key in known:
            present = present.delete(key)
            del known[key]
        else:
            with pytest.raises(KeyError):
                present.delete(key)
    for map_, as_dict in [*earlier, (present, known)]:
        assert (dict(map_.items()), len(map_), {*map_}) == (as_dict, len(as_dict), {*as_dict})
        assert map_ == kind(as_dict) == kind(list(as_dict.items()))


def test_a_pool_decides_alike_without_immutables() -> None:
    hidden = "import sys, runpy; sys.modules.update(immutables=None); sys.argv[0] = 'x'; "
    program = hidden + "runpy.run_module('elasticflow.simulator', run_name='__main__', alter_sys=True)"
    arguments = ["simulate", "--trace", "small", "--nodes", "1", "--policy", "edf", "--json"]
    numbers = [
        subprocess.run(
            [sys.executable, *how, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.partition('"wall_s"')[0]
        for how in (["-c", program], ["-m", "elasticflow.simulator"])
    ]
    assert numbers[0] == numbers[1]
