"""Several ranks of NCCL on one GPU, each a process that may be killed.

NCCL refuses two ranks on one GPU of one host. So each rank names a host of its own, and NCCL moves bytes by sockets.
NVIDIA supports that no more than this project does: it shows what errors, aborts and set-ups do, not their speed.
On CPUs gloo takes NCCL's place: that shows only that the parts run.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch documents its stores, but does not export them by the letter)

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from benchmarks.engine.parts import Device
from benchmarks.report import Measured
from elasticflow.services.executor.worker.group import groups
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.tcp_connections import bind_to_host
from elasticflow.services.executor.worker.group.transport import Membership
from elasticflow.shared.runtime.process.logs import configure_logs

_HOST = "127.0.0.1"
_STORE_S = 120.0  # for each wait in the store
_CONNECT_S = 60.0
_SHARED_GPU: Mapping[str, str] = {
    "NCCL_NET": "Socket",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_MAX_CTAS": "2",  # the kernels of all ranks wait for each other on one GPU
}
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Rank:
    """This process. store: of all ranks and of the process that started them.

    settings: of the experiment, among them group_timeout_s: of the collectives of its groups.
    """

    number: int
    size: int
    device: torch.device
    store: dist.Store
    settings: Mapping[str, float]

    def group(
        self, name: str, size: int | None = None, *, rank: int | None = None, may_connect_later: bool = False
    ) -> Group:
        """The engine's, with NCCL between ranks of one GPU."""
        return Group(
            Membership(
                dist.PrefixStore(name, self.store),
                rank=self.number if rank is None else rank,
                size=size or self.size,
                timeout_s=self.settings.get("group_timeout_s", _CONNECT_S),
            ),
            generation=1,
            device=self.device,
            may_connect_later=may_connect_later,
        )

    def tell(self, key: str) -> None:
        self.store.set(key, "")

    def await_word(self, key: str) -> None:
        """Await the key without the store's own wait, during which no other thread of this process can use it."""
        give_up_s = time.monotonic() + _STORE_S
        while not self.store.check([key]):
            assert time.monotonic() < give_up_s, f"{key} was not said within {_STORE_S:.0f} s"
            time.sleep(_POLL_S)


Act = Callable[[Rank], Measured]  # what a rank does; a function of a module


def over_nccl() -> None:
    """Let groups of this process use NCCL, also with a worker on the same GPU."""
    os.environ.update(_SHARED_GPU, NCCL_HOSTID=f"process-{os.getpid()}")
    bind_to_host(_HOST)
    groups.share_a_gpu = lambda one, other: False  # pyright: ignore[reportAttributeAccessIssue]


class Ranks:
    """Started ranks."""

    def __init__(self, act: Act, size: int, device: Device, **settings: float) -> None:
        self.store = dist.TCPStore(
            _HOST, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=_STORE_S)
        )
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([act.__module__])  # torch is loaded once
        start = _Start(act, size, device, self.store.port, dict(settings), self._folder.name)
        self._processes = [context.Process(target=_run, args=(start, number)) for number in range(size)]
        for process in self._processes:
            process.start()

    def hears(self, key: str) -> bool:
        """Whether a rank says so before one of them fails, and in time."""
        give_up_s = time.monotonic() + _CONNECT_S
        while not self.store.check([key]):
            has_failed = any(process.exitcode for process in self._processes)
            if has_failed or time.monotonic() > give_up_s:
                return False
            time.sleep(_POLL_S)
        return True

    def tell(self, key: str) -> None:
        self.store.set(key, "")

    def kill(self, number: int) -> float:
        """SIGKILL to one rank. Returns the monotonic time, which all processes share."""
        pid = self._processes[number].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    def results(self, within_s: float) -> list[Measured]:
        """The results of all ranks, with their exit_code; None: it ran on, and was killed."""
        give_up_s = time.monotonic() + within_s
        for process in self._processes:
            process.join(max(0.0, give_up_s - time.monotonic()))
        codes = [process.exitcode for process in self._processes]
        self.close()
        found: list[Measured] = []
        for number, code in enumerate(codes):
            file = Path(self._folder.name) / str(number)
            found.append({"exit_code": code, **(json.loads(file.read_text()) if file.exists() else {})})
        self._folder.cleanup()
        return found

    def close(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()


class _Start(NamedTuple):
    """What all ranks are started with. folder: for their results."""

    act: Act
    size: int
    device: Device
    port: int
    settings: dict[str, float]
    folder: str


def _run(start: _Start, number: int) -> None:
    configure_logs(level="error")
    over_nccl()
    store = dist.TCPStore(_HOST, start.port, is_master=False, timeout=timedelta(seconds=_STORE_S))
    device = start.device
    on = torch.device(device.value, 0) if device == Device.CUDA else torch.device(device.value)
    code = 0
    try:
        measured = start.act(Rank(number, start.size, on, store, start.settings))
    except Exception as error:
        traceback.print_exc()
        measured, code = {"error": f"{type(error).__name__}: {error}"}, 1
    written = Path(start.folder) / f"{number}.new"
    written.write_text(json.dumps(measured))
    os.replace(written, Path(start.folder) / str(number))
    sys.stderr.flush()
    os._exit(code)  # with all threads of all groups, at once


def failures(of_ranks: Sequence[Measured]) -> Measured:
    """exit_codes and errors of all ranks; a rank's error tells more than its peers'."""
    return {
        "exit_codes": [each["exit_code"] for each in of_ranks],
        "errors": [f"rank {number}: {each['error']}" for number, each in enumerate(of_ranks) if "error" in each],
    }


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def at_once(*acts: Callable[[], None]) -> None:
    """Several experiments, each in a thread."""
    with ThreadPoolExecutor(len(acts)) as threads:
        for future in [threads.submit(act) for act in acts]:
            future.result()
