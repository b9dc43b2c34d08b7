"""What isolation adds to the start of a worker: from the fork to the end of `WorkerFolders.close`, beside a plain fork.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python -m benchmarks.engine.isolated_starts

It forks from a process that has loaded torch, as a fork server does. Plain and isolated forks alternate.
"""

import os
import statistics
import sys
import tempfile
import time

import torch._dynamo
import torch.distributed
import torch.utils.data  # noqa: F401 - a fork server loads all of these

from elasticflow.shared.library_imports import without_gc
from elasticflow.shared.messages.worker_protocol.forking import Isolation
from elasticflow.shared.runtime.process.isolation.isolated_process import enter_isolation, fork_isolated
from elasticflow.shared.runtime.process.isolation.machine_check import namespaces_problem, python_folders

_NUM_PAIRS = 40


def start_s(isolation: Isolation | None, folder: str) -> float:
    """Seconds until the new process can run users' code."""
    reader, writer = os.pipe()
    began_s = time.perf_counter()
    pid = os.fork() if isolation is None else fork_isolated(isolation)
    if pid == 0:
        if isolation is not None:
            folders = enter_isolation(isolation)
            folders.show(writable=[folder])
            folders.close()
        os.write(writer, b"ready")
        os._exit(0)
    os.close(writer)
    started = os.read(reader, 5)
    took_s = time.perf_counter() - began_s
    os.close(reader)
    os.waitpid(pid, 0)
    if started != b"ready":
        sys.exit("a worker did not start: run `eflow doctor` with EF_ISOLATION=auto")
    return took_s


def main() -> None:
    if problem := namespaces_problem():
        sys.exit(f"no namespaces on this machine: {problem}")
    isolation = Isolation(namespaces=True, readable=python_folders())
    with tempfile.TemporaryDirectory() as folder, without_gc():
        pairs = [(start_s(None, folder), start_s(isolation, f"{folder}/job")) for _ in range(_NUM_PAIRS)]
    plain, isolated = zip(*pairs, strict=True)
    added = [after - before for before, after in pairs]
    for name, times_s in (("plain fork", plain), ("isolated", isolated), ("added", added)):
        low, middle, high = statistics.quantiles(times_s, n=4)
        print(f"{name:<11} median {middle * 1e3:5.1f} ms, quartiles {low * 1e3:5.1f} and {high * 1e3:5.1f} ms")


if __name__ == "__main__":
    main()
