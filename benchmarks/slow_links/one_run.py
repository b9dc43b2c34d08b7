"""One live pool on two nodes with a slow link: one GPU is free on each, and a job needs two that are near each other.

The command (arguments: seed, folder, megabits a second) needs namespaces of its own: see `network.ISOLATED`. It prints
one JSON object.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.partitions.network import Network
from elasticflow.client.pool_endpoint import read_run_file
from elasticflow.shared.messages.export import read_export
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.replay.recorded_ledger import folded, read_entries

NODES = ("node-0", "node-1")
SLOTS = 2
MEGABITS_PER_S = 200  # 4 MB of gradient then take as long as the compute
ITERATIONS = 150
WIDE = Path(__file__).with_name("wide_job.py")
CONFIG = """throughput_margin = 0.1
stop_free = true
"""
READY_TIMEOUT_S = 600.0
LEAD_S = 8.0  # of the picture, before the decision
SLACK_S = 2.0  # beyond the earliest deadline that is quoted


class Hold(NamedTuple):
    """A job has a GPU for a time. Seconds count from the decision on the job that needs two GPUs."""

    gpu: str
    job_id: str
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """speeds: iterations/s by GPUs, measured before. places: nodes of the job's GPUs. moved: jobs that made room for
    it. margin_s: negative if it is late."""

    seed: int
    speeds: dict[str, float]
    promised_in_s: float
    places: list[str]
    moved: list[str]
    iterations_per_s: float
    margin_s: float
    finished: bool
    holds: list[Hold]

    @property
    def is_kept(self) -> bool:
        return self.finished and self.margin_s >= 0


class Pool:
    """NATS and services on one machine, a node with two CPU slots on each of two others."""

    def __init__(self, folder: Path, megabits_per_s: int) -> None:
        self._folder = folder
        self.data = folder / "pool"
        self._network = Network(("server", *NODES))
        for node in NODES:
            self._network.limit(node, megabits_per_s)

    def open(self) -> None:
        """Return once both nodes are members."""
        config = self._folder / "pool.toml"
        config.write_text(CONFIG)
        up = ("up", "--nodes", "0", "--data-dir", self.data, "--config", config, "--detach", "--nats-port", "4222")
        host = self._network.address["server"]
        self.eflow(*up, "--nats-host", host)
        run = read_run_file(self.data)
        assert run is not None, "the pool runs"
        for node in NODES:
            address = {"EF_ADVERTISE_HOST": self._network.address[node], "EF_DATA_INTERFACE": "eth0"}
            command = ("node", "--node-id", node, "--device", "cpu", "--slots", str(SLOTS), "--nats-url", run.nats_url)
            self._network.start(
                node,
                [*_EFLOW, *command, "--data-dir", str(self.data)],
                env={**os.environ, **address},
                log=self._folder / f"{node}.log",
            )
        self.until(lambda: len(self.json("nodes")) == len(NODES), "both nodes are members")

    def close(self) -> None:
        self.eflow("down", "--data-dir", self.data)

    def eflow(self, *arguments: str | Path) -> str:
        """Output of the command on the server's machine. Raises RuntimeError with its errors."""
        command = [*self._network.on("server"), *_EFLOW, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=READY_TIMEOUT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, arguments))}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout

    def json(self, *arguments: str | Path) -> Any:
        return json.loads(self.eflow(*arguments, "--json", "--data-dir", self.data))

    def job(self, job_id: str) -> dict[str, Any]:
        return next(job for job in self.json("jobs", "--all") if job["job_id"] == job_id)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        limit_s = time.monotonic() + READY_TIMEOUT_S
        while not holds():
            if time.monotonic() > limit_s:
                raise RuntimeError(f"it never came that {what}")
            time.sleep(0.3)


_EFLOW = (sys.executable, "-m", "elasticflow")


def run(seed: int, folder: Path, megabits_per_s: int) -> Result:
    pool = Pool(folder, megabits_per_s)
    pool.open()
    measured = {str(point["num_gpus"]): point["iterations_per_s"] for point in pool.json("profile", WIDE)["points"]}
    _leave_one_gpu_free_on_each_node(pool)
    before = {name: pool.job(name)["gpus"] for name in "abc"}
    wanted = (WIDE, "--iterations", str(ITERATIONS), "--gpus", "..2")
    quoted = pool.json("quote", *wanted)
    deadline = f"{quoted['earliest_deadline_s'] - quoted['at_s'] + SLACK_S:.0f}s"
    pool.json("submit", *wanted, "--deadline", deadline, "--name", "wide")
    pool.until(lambda: pool.job("wide")["iteration"] >= ITERATIONS // 2, "the job has done half of its iterations")
    half = pool.job("wide")
    after = {name: pool.job(name)["gpus"] for name in "abc"}
    pool.until(lambda: pool.job("wide")["ended_at_s"] is not None, "the job ends")
    end = pool.job("wide")
    ledger = folder / "run.ledger"
    pool.eflow("events", "export", ledger, "--data-dir", pool.data)
    pool.close()
    return Result(
        seed=seed,
        speeds=measured,
        promised_in_s=end["deadline_s"] - end["decided_at_s"],
        places=[gpu.split(":")[0] for gpu in half["gpus"]],
        moved=[name for name in before if after[name] and after[name] != before[name]],
        iterations_per_s=half["iterations_per_s"] or 0.0,
        margin_s=end["deadline_s"] - end["ended_at_s"],
        finished=end["activity"] == "finished",
        holds=_holds(ledger, end["decided_at_s"], end["ended_at_s"]),
    )


def _holds(ledger: Path, start_s: float, end_s: float) -> list[Hold]:
    """Which job had which GPU from `LEAD_S` before this instant to that one."""
    holds: list[Hold] = []
    since: dict[tuple[str, str], float] = {}
    state = PoolState()
    with ledger.open("rb") as opened:
        entries = [entry for entry in read_entries(read_export(opened)) if entry.stored_at_s <= end_s]
    for entry in entries:
        state = folded((entry,), state)
        held = {(f"{node}:{gpu}", job.job_id) for job in state.live_jobs.values() for node, gpu in job.gpus}
        now_s = max(entry.stored_at_s - start_s, -LEAD_S)
        holds += [Hold(*left, since.pop(left), now_s) for left in sorted(since.keys() - held)]
        since |= dict.fromkeys(held - since.keys(), now_s)
    holds += [Hold(*left, from_s, end_s - start_s) for left, from_s in sorted(since.items())]
    return [hold for hold in holds if hold.until_s > hold.from_s]


def _leave_one_gpu_free_on_each_node(pool: Pool) -> None:
    """Two jobs of one GPU stay, on different nodes; a third one, beside either, is cancelled."""
    for name in ("a", "b", "c"):
        pool.json("submit", WIDE, "--iterations", "2000", "--gpus", "1", "--deadline", "2h", "--name", name)
    pool.until(lambda: all(pool.job(name)["activity"] == "running" for name in "abc"), "three jobs train")
    full = next(node for node in pool.json("nodes") if all(node["jobs"]))
    pool.eflow("cancel", full["jobs"][0], "--data-dir", pool.data)
    pool.until(lambda: all(sorted(node["jobs"])[0] == "" for node in pool.json("nodes")), "each node has a free GPU")


if __name__ == "__main__":
    print(json.dumps(asdict(run(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))))
