"""Workers connect by the interface that the executor names; one that does not reach their peers is in the job's log."""

import os
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from structlog.testing import capture_logs

from elasticflow.services.executor.worker.group import groups as transports
from elasticflow.services.executor.worker.group.gloo_transport import connect_all
from elasticflow.services.executor.worker.group.groups import DeviceIdentity
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.tcp_connections import bind_to_host
from elasticflow.services.executor.worker.group.transport import Membership

GPU = torch.device("cuda", 0)


@pytest.fixture
def _interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=ib0")


def fails(error: Exception) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def test_the_interface_of_the_advertised_host_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    bind_to_host("127.0.0.1")
    assert [os.environ[name] for name in names] == ["lo", "=lo"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    bind_to_host("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"


@pytest.mark.usefixtures("_interface")
@pytest.mark.parametrize("library", ["gloo", "nccl"])
def test_an_interface_that_does_not_reach_the_peers_is_named(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setattr(dist, "ProcessGroupGloo", fails(RuntimeError("connect timed out\n at a line")))
    monkeypatch.setattr(transports, "NcclTransport", fails(TimeoutError("NCCL did not answer within 1 s")))
    gpus = [DeviceIdentity(host="a", kind="cuda", uuid=uuid, has_nccl=True) for uuid in ("1", "2")]
    member = Membership(dist.HashStore(), rank=0, size=1, timeout_s=0.0)
    gloo: Any = None
    connect = {
        "gloo": partial(connect_all, member),
        "nccl": partial(transports.device_transport, gloo, member, device=GPU, identities=gpus),
    }
    with capture_logs() as logs, pytest.raises((RuntimeError, PeerLost)):
        connect[library]()
    (entry,) = logs
    assert (entry["event"], entry["library"], entry["interface"]) == ("workers_not_connected", library, "ib0")
    assert "\n" not in entry["reason"]
    assert "set EF_DATA_INTERFACE of each executor" in entry["advice"]
