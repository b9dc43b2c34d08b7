"""Attacks of user_code/attacks_on_node.py on the node of a test or a benchmark, their aims, and a neighbour."""

import json
from pathlib import Path
from typing import Any

from elasticflow.shared.messages.worker_protocol.from_worker import (
    ARTIFACT_FOLDER,
    Alive,
    ExitCode,
    Failed,
    Finished,
    Started,
)
from testbed.worker_nodes import Generation, Node, job_spec

MEMORY_LIMIT_BYTES = 512 << 20  # of an attacker
NEIGHBOUR = {"max_iterations": 200, "global_batch_size": 16}
DAEMONS_SLEEP_S = 97_531  # by which they are found
PRIVATE_FILE = Path("/tmp/attack")  # each worker has a /tmp of its own


def targets_of_attacks(node: Node, job_id: str, *, pid: int, nats_address: str, secret: str) -> dict[str, str]:
    """The targets by attack, without those that fill a real disk. pid: of a process of the executor's user."""
    token_file, logs = node.folder / "run.json", node.launcher.log_file(job_id, 1, 0).parent
    written = (Path(__file__).parent / "x", node.folder / "x", "/usr/x", "/etc/x", PRIVATE_FILE)
    aimed = {
        "read_environments": secret,
        "read_file": token_file,
        "list_folder": node.folder / "checkpoints",
        "write_files": " ".join(map(str, written)),
        "plant_links": f"{logs} {token_file}",
        "nest_folders": logs,
        "link_artifacts": f"{node.checkpoints_of(job_id) / ARTIFACT_FOLDER} {token_file}",
        "leave_daemons": DAEMONS_SLEEP_S,
        "end_process": pid,
        "trace_process": pid,
        "write_plan_without_key": nats_address,
    }
    on_the_machine = (
        *("ask_the_kernel", "list_devices"),
        *("open_files", "enter_user_namespace", "fork_bomb", "memory_bomb", "run_out_of_memory"),
        *("fill_folders_in_memory", "make_empty_files"),
    )
    return {name: str(target) for name, target in aimed.items()} | dict.fromkeys(on_the_machine, "")


async def attack_on(node: Node, attack: str, target: object = "", *, job_id: str = "", **assigned: Any) -> Failed:
    """How the attacker failed, once its worker has ended."""
    spec = job_spec("hostile_jobs:Hostile", hyperparameters={"attack": attack, "target": str(target)})
    workers = await node.launch(spec, job_id=job_id or node.new_job_id(), **assigned)
    failed = await workers.first(Failed)
    assert (await workers.ended())[0].code == ExitCode.FAILED
    return failed


async def outcome_of(node: Node, attack: str, target: object = "", **assigned: Any) -> Any:
    """What the attack achieved, once its worker has ended."""
    failed = await attack_on(node, attack, target, **assigned)
    kind, _, outcome = failed.error.partition(": ")
    assert kind == "RuntimeError"
    return json.JSONDecoder().raw_decode(outcome)[0]  # a note on the place follows


class Neighbour:
    """A job of two workers that trains until `release`, however long that takes."""

    def __init__(self, node: Node) -> None:
        self._node, self._job_id = node, node.new_job_id()
        self._slow_down = node.checkpoints_of(self._job_id) / "slow_down"
        self.workers: Generation

    async def start(self) -> None:
        self._slow_down.parent.mkdir(parents=True)
        self._slow_down.touch()
        slow = {"slow_down": str(self._slow_down), "slow_down_s": 0.00003}  # it takes many steps beside many attacks
        spec = job_spec("Points", **NEIGHBOUR, hyperparameters=slow)
        self.workers = await self._node.launch(spec, job_id=self._job_id, num_workers=2, checkpoint_every_s=0.2)
        await self.workers.first(Started)

    def iteration(self) -> int:
        """The newest that a worker has reported."""
        return max((alive.iteration for alive in self.workers.all_of(Alive)), default=0)

    async def release(self) -> None:
        assert not self.workers.all_of(Finished), "it trained beside all attacks"
        self._slow_down.unlink()
        await self.workers.first(Finished)
        assert {exit_.code for exit_ in (await self.workers.ended()).values()} == {ExitCode.DONE}

    async def assert_equal_to_one_alone(self) -> None:
        """Compare to the bit with a run alone."""
        alone = self._node.new_job_id()
        workers = await self._node.launch(job_spec("Points", **NEIGHBOUR), job_id=alone, num_workers=2)
        await workers.first(Finished)
        await workers.ended()
        assert _checkpoint_of(self._node, self._job_id) == _checkpoint_of(self._node, alone)


def _checkpoint_of(node: Node, job_id: str) -> str:
    """The name of the newest one: iteration and SHA-256 of the state."""
    return max(file.name for file in node.checkpoints_of(job_id).glob("*.ckpt"))
