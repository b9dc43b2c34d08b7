"""torchrun beside this engine: each resize restarts all workers from a snapshot.

Agents of two workers each use the c10d rendezvous: a second agent joins, and is lost. Times run from the command (the
second agent is started; it and its workers get SIGKILL; one of two workers gets it) to the end of the first step of the
new workers. The work since the snapshot is lost in addition. The agents' timeouts are shorter than by default: one
second instead of 30 for late agents, three instead of 15 without a heartbeat.

The second agent is not stopped by SIGTERM, which closes the rendezvous for both (pytorch/pytorch#67742). And agents do
not share their store, or in torch 2.13 a joining agent waits forever for the address of the former rank 0.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from rich.table import Table

from benchmarks.engine.parts import Options, Row, in_ms, table_of
from benchmarks.engine.step_log import NoStep, StepLog
from elasticflow.shared.runtime.process.process_termination import kill_process_group

_ROOT = Path(__file__).parents[2]
_STEADY_STEPS = 12
_END_S = 10.0


def measure(options: Options) -> list[Row]:
    rows: list[Row] = []
    for million_parameters in options.million_parameters:
        try:
            rows.append(measure_torchrun(million_parameters))
        except NoStep as error:
            rows.append({"million_parameters": million_parameters, "error": str(error)})
    return rows


def table(rows: list[Row]) -> Table:
    drawn = table_of(
        "torchrun: from the command to the first step, milliseconds",
        *("parameters", "step", "2 -> 4", "4 -> 2", "after SIGKILL", "error"),
    )
    for row in rows:
        times = in_ms(row, "step_s", "2 -> 4", "4 -> 2", "crash_s")
        drawn.add_row(f"{row['million_parameters']} M", *times, row.get("error", ""))
    return drawn


def set_beside(resizes: list[Row], rows: list[Row]) -> None:
    """Each resize that was measured here, too, gets this time, and its ratio to the stop."""
    by_size = {row["million_parameters"]: row for row in rows}
    for row in resizes:
        restart_s = by_size.get(row["million_parameters"], {}).get(row["change"])
        if restart_s is not None:
            row |= {"torchrun_s": restart_s, "torchrun_ratio": restart_s / row["stop_s"]}


def measure_torchrun(million_parameters: int) -> Row:
    """A row: 2 -> 4 -> 2 workers, then a crash of one of two."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log, port = StepLog(folder / "steps", million_parameters), _free_port()
        with _agent(folder, port, million_parameters):
            step_s = log.steady(2, num_steps=_STEADY_STEPS, what="torchrun with 2 workers")
            asked_s = time.monotonic()
            with _agent(folder, port, million_parameters) as second:
                grown = log.first(lambda step: step.num_workers == 4, what="torchrun, 2 -> 4")
                log.steady(4, num_steps=_STEADY_STEPS, what="torchrun with 4 workers")
                lost_s = time.monotonic()
                for process in (second.pid, *_workers_of(second.pid)):
                    os.kill(process, signal.SIGKILL)
                shrunk = log.first(lambda step: step.num_workers == 2 and step.at_s > lost_s, what="torchrun, 4 -> 2")
            log.steady(2, num_steps=_STEADY_STEPS, what="torchrun with 2 workers again")
            killed_s = time.monotonic()
            os.kill(int((folder / "rank-1").read_text()), signal.SIGKILL)
            after = log.first(lambda step: step.process != shrunk.process and step.at_s > killed_s, what="torchrun")
    return {
        "million_parameters": million_parameters,
        "step_s": step_s,
        "2 -> 4": grown.at_s - asked_s,
        "4 -> 2": shrunk.at_s - lost_s,
        "crash_s": after.at_s - killed_s,
    }


def _workers_of(agent: int) -> list[int]:
    return [child.pid for child in psutil.Process(agent).children(recursive=True)]


@contextmanager
def _agent(folder: Path, port: int, million_parameters: int) -> Iterator[subprocess.Popen[bytes]]:
    command = (
        *("torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=2", "--max-restarts=100"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=benchmark"),
        "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1",
        *("-m", "benchmarks.engine.torchrun_script", str(folder), str(million_parameters)),
    )
    with running(command, folder / "torchrun.log", {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}) as process:
        yield process


@contextmanager
def running(
    module_and_arguments: Sequence[str], log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A module as a process and a process group of its own, which is killed at the end."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *module_and_arguments],
            cwd=_ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}),
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.terminate()
            process.wait(_END_S)
        kill_process_group(process.pid)
        process.wait()


def _free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]
