"""Saves of a script count as snapshots of what it had done when they began."""

import importlib.util
import json
import subprocess
import sys

import pytest

_SAVES = {
    "a path": "torch.save(1, 'a')",
    "a path by name": "torch.save(obj=1, f='a')",
    "an open file": "with open('a', 'wb') as file: torch.save(1, file)",
    "a distributed checkpoint": "from torch.distributed.checkpoint import save\n"
    "save({'a': torch.ones(2)}, checkpoint_id='b', no_dist=True)",
    "a checkpoint in the background": "from torch.distributed.checkpoint import async_save\n"
    "torch.distributed.init_process_group('gloo', rank=0, world_size=1, store=torch.distributed.HashStore())\n"
    "saving = async_save({'a': torch.ones(2)}, checkpoint_id='c')\n"
    "done[0] += 5\n"
    "saving.result()",
}
if importlib.util.find_spec("safetensors") is not None:  # an extra
    _SAVES["safetensors"] = "from safetensors.torch import save_file; save_file({'a': torch.ones(2)}, 'd')"
_OTHERS = {
    "memory": "torch.save(1, io.BytesIO())",
    "a thread's stream": "def write():\n"
    "    with open('a', 'wb') as file: torch.save(1, file)\n"
    "thread = threading.Thread(target=write); thread.start(); thread.join()",
}
_PROGRAM = """
import io, json, sys, threading
from fractions import Fraction
from elasticflow.services.executor.worker.scripts.snapshot_watch import SnapshotWatch
done, noted = [Fraction(7)], []
SnapshotWatch(lambda: done[0], noted.append).begin()
import importlib.util, torch
if importlib.util.find_spec("safetensors") is not None:
    assert importlib.util.find_spec("safetensors.torch") is not None, "a library asks whether there is one"
result = {}
for name, code in json.loads(sys.argv[1]).items():
    done[0] = Fraction(7)
    exec(code)
    result[name], noted[:] = [int(each) for each in noted], []
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def noted(tmp_path_factory):
    """By each kind of save, in a process of its own: the watch replaces functions of torch."""
    command = [sys.executable, "-c", _PROGRAM, json.dumps(_SAVES | _OTHERS)]
    folder = tmp_path_factory.mktemp("saves")
    return json.loads(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("kind", _SAVES)
def test_a_save_is_a_snapshot_of_what_was_done_when_it_began(noted, kind):
    assert noted[kind] == [7]


@pytest.mark.parametrize("kind", _OTHERS)
def test_other_saves_are_no_snapshots(noted, kind):
    assert noted[kind] == []
