"""Hostile messages, and the places they go to: bytes from a seed, and frames that workers of real jobs send."""

import contextlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from elasticflow.shared.errors import Retry
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.state import snapshot_encoding
from testbed.hostile_messages import JOB, NODE, PLAN, QUOTE, SUBMIT, TELEMETRY, hostile_bytes
from testbed.real_pool import POOL, RunningPool, job

RECORDED = Path(__file__).parents[1] / "tests" / "unit" / "shared" / "messages" / "recorded_messages"
MAX_BYTES = 16_384  # larger ones are the tests' matter: here the number counts
FRAMES_JOB = "frames-"  # the beginning of the ids of the jobs whose workers send frames
NUM_FRAME_JOBS = 2  # one for each slot of the node
_FRAMES_SENT = re.compile(r"^frame (\d+)$", re.MULTILINE)

Send = Callable[[bytes, int], Awaitable[object]]


class Hostile:
    """Bytes from a seed: those of the tests, and recorded messages with some bytes changed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._chance = [data for data in hostile_bytes() if len(data) <= MAX_BYTES]
        self._recorded = [file.read_bytes() for file in sorted(RECORDED.glob("*.msgpack"))]

    def next(self) -> bytes:
        if self._rng.random() < 0.3:
            return self._chance[int(self._rng.integers(len(self._chance)))]
        data = bytearray(self._recorded[int(self._rng.integers(len(self._recorded)))])
        for _ in range(int(self._rng.integers(0, 4))):
            data[int(self._rng.integers(len(data)))] = int(self._rng.integers(256))
        return bytes(data[: int(self._rng.integers(1, len(data) + 1))] if self._rng.random() < 0.2 else data)


def senders(pool: RunningPool) -> dict[str, Send]:
    """The senders, by name of the kind of place."""
    bus = pool.bus

    def append(subject: str) -> Send:
        return lambda data, number: bus.append(subject, data, message_id=f"hostile-{number}")

    async def replace_snapshot(data: bytes, _: int) -> None:
        saved = await snapshot_store.newest_saved(bus, POOL)
        name = snapshot_store.saved_object("none" if saved is None else saved.snapshot)
        await bus.put_object(streams.snapshot_bucket(POOL), name, data)

    return {
        "commands": append(SUBMIT),
        "quotes": lambda data, _: bus.request(QUOTE, data, 10.0),
        "telemetry": lambda data, _: bus.publish(TELEMETRY, data),
        "replies": lambda data, _: bus.publish(subjects.answer("lab", POOL, "intruder"), data),
        "events of jobs": append(JOB),
        "events of nodes": append(NODE),
        "events of loads": append(subjects.load(POOL, "intruder")),
        "tasks": append(subjects.tasks(POOL, "intruder")),
        "results": append(subjects.results(POOL, "intruder", 0, 1)),
        "records of nodes": lambda data, _: bus.put_value(streams.node_bucket(POOL), "intruder", data),
        "views": lambda data, number: bus.put_value(streams.view_bucket(POOL), f"intruder.history.{number % 50}", data),
        "logs": lambda data, number: bus.put_value(streams.log_bucket(POOL), f"lab.intruder.j.{number % 50}", data),
        "code": lambda data, number: bus.put_object(streams.code_bucket(POOL), f"lab/{number % 50}", data),
        "artifacts": lambda data, number: bus.put_object(
            streams.artifact_bucket(POOL), streams.artifact_name("lab", "intruder", f"{number % 50}", 0), data
        ),
        "snapshots": replace_snapshot,
        "names of snapshots": append(subjects.snapshot(POOL, snapshot_encoding.SHAPE)),
        "leases": lambda data, number: bus.put_value(streams.state_bucket(POOL), f"lease.intruder-{number % 50}", data),
        "attempts": lambda data, number: bus.put_value(streams.state_bucket(POOL), f"attempts.{number}-0", data),
        "dead letters": append(subjects.dead_letter(POOL, "admission")),
    }


def rare_senders(pool: RunningPool) -> dict[str, Send]:
    """The senders after which planners wait for the operator, or the monitor makes all views again."""
    return {
        "plan": lambda data, number: pool.bus.append(PLAN, data, message_id=f"hostile-{number}"),
        "writer of views": lambda data, _: pool.bus.put_value(streams.view_bucket(POOL), streams.WRITER_KEY, data),
    }


async def send_frames(pool: RunningPool) -> None:
    """Keep jobs running whose workers send frames of their own. Until cancelled."""
    spec = job(
        JobClass.BEST_EFFORT,
        training_function="testbed.user_code.hostile_frames:Frames",
        hyperparameters={"step_s": 0.2, "frames_per_step": 18},
        max_iterations=1_000_000,
        max_gpus=1,
    )
    live, number = set[str](), 0
    async with contextlib.aclosing(pool.client.states()) as states:
        async for state in states:
            live = {job_id for job_id in live if job_id not in state.ended_jobs}
            while len(live) < NUM_FRAME_JOBS:
                with contextlib.suppress(Retry):  # a full work queue; the next state is soon
                    live.add(await pool.client.post(spec, job_id=f"{FRAMES_JOB}{number}"))
                    number += 1


def frames_sent(pool: RunningPool) -> int:
    """The frames that all workers have sent, as their logs tell."""
    logs = pool.data_dir.glob(f"logs/{FRAMES_JOB}*/g*-r*.log")
    return sum(max(map(int, _FRAMES_SENT.findall(log.read_text(errors="replace"))), default=0) for log in logs)


def channels_broken(pool: RunningPool) -> int:
    """Workers that the executor has killed for a frame that it could not read."""
    return (pool.data_dir / "services" / "executor-node-0.log").read_text(errors="replace").count("channel_broken")
