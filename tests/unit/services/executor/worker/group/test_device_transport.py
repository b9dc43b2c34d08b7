"""All workers of a group choose one route for the tensors of their devices; the GPUs are fakes here."""

# pyright: reportPrivateImportUsage=false

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from structlog.testing import capture_logs

from elasticflow.services.executor.worker.group import groups as transports
from elasticflow.services.executor.worker.group.groups import (
    DeviceIdentity,
    Route,
    decoded,
    encoded,
    identity_of,
    route_between,
)
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.rendezvous_store import RendezvousAborted
from elasticflow.services.executor.worker.group.transport import Membership
from elasticflow.services.executor.worker.interface import TrainingFailed

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
WAIT_S = 30.0
SLOT = DeviceIdentity(host="a", kind="cpu", arithmetic="cpu")


def gpu(pci_address: str, uuid: str, host: str = "a", **more: Any) -> DeviceIdentity:
    values = {"arithmetic": "H100", "has_nccl": True, **more}
    return DeviceIdentity(host=host, kind="cuda", pci_address=pci_address, uuid=uuid, **values)


@pytest.mark.parametrize(
    ("identities", "route"),
    [
        ([SLOT, SLOT], Route.HOST),
        ([gpu("1", "x"), gpu("2", "y")], Route.NCCL),
        ([gpu("1", "x"), gpu("1", "y", host="b")], Route.NCCL),
        ([gpu("1", "x"), SLOT], Route.HOST),
        ([SLOT, gpu("1", "x", has_nccl=False)], Route.HOST),
        ([gpu("1", "x"), gpu("1", "y")], Route.HOST),  # two instances of one GPU
        ([gpu("1", "x"), gpu("2", "x", host="b")], Route.HOST),  # in two containers
        ([gpu("", "x"), gpu("", "y")], Route.NCCL),
        ([gpu("", "x"), gpu("", "x")], Route.HOST),
        ([gpu("1", "x"), gpu("2", "y"), gpu("2", "z")], Route.HOST),
    ],
)
def test_workers_use_nccl_if_each_has_a_gpu_of_its_own(identities: Sequence[DeviceIdentity], route: Route) -> None:
    assert route_between(identities) is route
    assert route_between(identities[::-1]) is route


def test_all_workers_refuse_gpus_of_which_one_has_no_nccl() -> None:
    identities = [gpu("1", "x"), gpu("2", "y", has_nccl=False)]
    with pytest.raises(TrainingFailed, match=r"rank 1 has no NCCL, by which 2 workers .* or limit the job to one GPU"):
        route_between(identities)


@pytest.mark.parametrize(("has_address", "address"), [(True, "0001:3b:00.0"), (False, "")])
def test_the_identity_of_a_gpu_is_what_torch_tells(
    monkeypatch: pytest.MonkeyPatch, has_address: bool, address: str
) -> None:
    found = SimpleNamespace(name="NVIDIA H100", multi_processor_count=132, uuid=SimpleNamespace(bytes=[1, 255]))
    if has_address:
        found.pci_domain_id, found.pci_bus_id, found.pci_device_id = 1, 0x3B, 0
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    identity = identity_of(GPU)
    assert (identity.kind, identity.pci_address, identity.uuid) == ("cuda", address, "01ff")
    assert identity.arithmetic == "NVIDIA H100, 132 multiprocessors"
    assert decoded(encoded(identity)) == identity
    assert identity_of(CPU).host == identity_of(None).host == identity.host
    assert encoded(identity).shape == encoded(identity_of(None)).shape


FRAMES = "\nException raised from create at NCCLUtils.cpp:1\nframe #0: f()"
ERRORS = [
    (
        dist.DistBackendError(
            "unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:"
            f"\nFailed to CUDA calloc 6291456 bytes{FRAMES}"
        ),
        "Failed to CUDA calloc 6291456 bytes",
        "NCCL's buffers need memory",
    ),
    (
        dist.DistBackendError(
            "NCCL error\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
            f"Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000{FRAMES}"
        ),
        "Duplicate GPU detected : rank 1 and rank 0",
        "two workers have one GPU",
    ),
    (
        dist.DistBackendError(
            "unhandled system error\nncclSystemError: System call (e.g. socket, malloc) failed or device error."
            f"\nLast error:\nsocketStartConnect: Connect to 10.0.0.1<1> failed : No route to host{FRAMES}"
        ),
        "No route to host",
        "set EF_DATA_INTERFACE",
    ),
    (
        dist.DistBackendError(f"ncclInternalError: Internal check failed.\nLast error:\nno such topology{FRAMES}"),
        "no such topology",
        "set NCCL_DEBUG=WARN",
    ),
    (torch.OutOfMemoryError("CUDA out of memory."), "CUDA out of memory.", "NCCL's buffers need memory"),
    (RuntimeError("CUDA error: out of memory"), "CUDA error: out of memory", "NCCL's buffers need memory"),
    (TimeoutError("NCCL did not answer within 30 s"), "did not answer", "set EF_DATA_INTERFACE"),
]


def connect(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(transports, "NcclTransport", fail)
    gloo: Any = None
    transports.device_transport(
        gloo,
        Membership(dist.HashStore(), rank=0, size=2, timeout_s=1.0),
        device=GPU,
        identities=[gpu("1", "x"), gpu("2", "y")],
    )


@pytest.mark.parametrize(("error", "reason", "advice"), ERRORS, ids=lambda each: type(each).__name__)
def test_the_log_has_the_error_of_nccl_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, advice: str
) -> None:
    with capture_logs() as logs, pytest.raises(PeerLost) as lost:
        connect(monkeypatch, error)
    (entry,) = logs
    assert (entry["event"], entry["reason"]) == ("workers_not_connected", str(lost.value))
    assert reason in entry["reason"]
    assert "frame" not in entry["reason"]
    assert advice in entry["advice"]


@pytest.mark.parametrize("error", [RendezvousAborted(), RuntimeError("an error of this code")])
def test_other_errors_are_no_losses(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        connect(monkeypatch, error)


IN_A_PROCESS = """
import sys
from datetime import timedelta
import torch, torch.distributed as dist
from elasticflow.services.executor.worker.group import groups
from elasticflow.services.executor.worker.group.groups import DeviceIdentity
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.transport import Membership, Transfer

rank, folder = int(sys.argv[1]), sys.argv[2]
if rank == 1:
    groups.identity_of = lambda _: DeviceIdentity(host="b", kind="cuda", arithmetic="other", has_nccl=True)
store = dist.FileStore(folder, 2)
store.set(f"arrived-{rank}", "")
store.wait(["arrived-0", "arrived-1"], timedelta(seconds=240))  # the attempts to connect begin short
member = Membership(store, rank=rank, size=2, timeout_s=60.0)
group = Group(member, generation=1, device=torch.device("cpu"))
summed, mine, theirs = torch.ones(3), torch.full((2,), float(rank)), torch.empty(2)
group.all_reduce(summed).wait()
group.exchange([Transfer(mine, 1 - rank)], [Transfer(theirs, 1 - rank)])
group.broadcast_all(shared := [torch.full((2,), float(rank)), torch.full((1,), float(rank))], source=1)
group.check_received()
print(type(group._on_device).__name__, summed.tolist(), theirs.tolist(), [each.tolist() for each in shared])
group.barrier()
group.release()
"""


def test_processes_with_two_kinds_of_device_exchange_tensors(tmp_path: Path) -> None:
    """One of them takes its CPU for a GPU."""
    commands = [[sys.executable, "-c", IN_A_PROCESS, str(rank), str(tmp_path / "store")] for rank in range(2)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        outputs = [each.communicate(timeout=10 * WAIT_S)[0].splitlines()[-1] for each in running]  # after the log
    finally:
        for each in running:
            each.kill()
            each.communicate()
    summed, shared = [2.0] * 3, [[1.0, 1.0], [1.0]]
    assert outputs == [f"GlooTransport {summed} [1.0, 1.0] {shared}", f"StagedTransport {summed} [0.0, 0.0] {shared}"]
