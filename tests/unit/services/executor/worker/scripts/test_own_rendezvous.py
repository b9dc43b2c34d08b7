"""Process groups of users' code meet at the job's rendezvous; another number of processes is refused."""
# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false

import os
import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers

from elasticflow.services.executor.worker.engine.training_function import in_users_code
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.scripts.script_environment import (
    SINGLE_PROCESS_ENVIRONMENT,
    use_own_rendezvous,
)

TWO = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}


@pytest.fixture
def busy_port() -> Iterator[int]:
    """As of another worker of the node. torch's handlers and the environment are restored."""
    before, environment = dict(_rendezvous_handlers), dict(os.environ)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]
    if dist.is_initialized():
        dist.destroy_process_group()
    _rendezvous_handlers.update(before)
    os.environ.clear()
    os.environ.update(environment)


def test_a_script_has_a_group_of_one_whatever_port_it_names(busy_port: int) -> None:
    use_own_rendezvous(SINGLE_PROCESS_ENVIRONMENT)
    os.environ.update(SINGLE_PROCESS_ENVIRONMENT)
    for environment, arguments in (
        ({"MASTER_PORT": str(busy_port)}, {}),
        ({"MASTER_PORT": str(busy_port)}, {"rank": 0, "world_size": 1}),
        ({}, {"init_method": f"tcp://127.0.0.1:{busy_port}", "rank": 0, "world_size": 1}),
        ({}, {"init_method": "file:///proc/no-such-file", "rank": 0, "world_size": 1}),
    ):
        os.environ.update(environment)
        dist.init_process_group("gloo", **arguments)  # type: ignore[arg-type]
        mean = torch.ones(1)
        dist.all_reduce(mean, group=dist.new_group([0]))
        assert (mean.item(), dist.get_world_size()) == (1.0, 1)
        dist.destroy_process_group()


def test_another_number_of_processes_is_refused_with_what_to_write(busy_port: int) -> None:
    use_own_rendezvous(SINGLE_PROCESS_ENVIRONMENT)
    with pytest.raises(
        TrainingFailed, match=r"world_size=4\): the code sees one process.*Leave rank and world_size out"
    ):
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{busy_port}", rank=0, world_size=4)
    use_own_rendezvous(TWO | {"MASTER_PORT": "1"})
    with pytest.raises(TrainingFailed, match=r"world_size=4\): the code sees 2 processes now"):
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{busy_port}", rank=1, world_size=4)
    with pytest.raises(TrainingFailed, match=r"rank=0\) in the worker of rank 1"):
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{busy_port}", rank=0, world_size=2)


def test_workers_of_a_torchrun_script_meet_at_their_own_store(busy_port: int) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))
    use_own_rendezvous(TWO | {"MASTER_PORT": str(store.port)})
    os.environ["MASTER_PORT"] = str(busy_port)
    for url in ("env://?rank=1&world_size=2", f"tcp://127.0.0.1:{busy_port}?rank=1&world_size=2"):
        theirs, rank, size = next(iter(dist.rendezvous(url)))
        assert (rank, size) == (1, 2)
        theirs.set("key", "value")
        assert store.get("key") == b"value"
        assert os.environ["MASTER_PORT"] == str(store.port)


def test_a_port_in_use_is_the_codes_own_error_and_no_lost_peer(busy_port: int) -> None:
    for has_peers in (False, True):
        with pytest.raises(dist.DistNetworkError, match="EADDRINUSE") as caught, in_users_code("", has_peers=has_peers):
            dist.TCPStore("127.0.0.1", busy_port, 1, is_master=True)
        assert "leave the port out" in "".join(caught.value.__notes__)


def test_an_error_of_the_codes_own_store_is_a_lost_peer_only_where_it_has_peers(busy_port: int) -> None:
    def wait_alone() -> None:
        dist.HashStore().wait(["key"], timedelta(milliseconds=1))

    with pytest.raises(dist.DistStoreError), in_users_code(""):
        wait_alone()
    with pytest.raises(PeerLost), in_users_code("", has_peers=True):
        wait_alone()
