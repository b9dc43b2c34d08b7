"""What an aborted sum leaves never reaches the model, over a transport whose aborts raise no error."""

# pyright: reportPrivateImportUsage=false

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.engine.transports import connecting
from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.fast_steps import FastSteps
from elasticflow.services.executor.worker.engine.gradients_and_buffers import Buffers, CarriedGradients
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.tree_reduce import TensorSum, TreeExchange
from elasticflow.services.executor.worker.group import groups
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.transport import Membership
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch

CPU = torch.device("cpu")
WAIT_S = 30.0
TWO = VirtualNodes(count=2, global_batch_size=4)


@pytest.fixture(autouse=True)
def _asynchronous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "device_transport", connecting("asynchronous"))


def close_soon(group: Group) -> None:
    """While it waits, as after a loss."""
    threading.Timer(0.3, group.close).start()


def beside_a_lost_peer(act: Callable[[Group], object]) -> None:
    """Both ranks act, and rank 0 closes its group in the end. Raises what its act raises."""
    store = dist.HashStore()

    def connect(rank: int) -> Group:
        return Group(Membership(store, rank=rank, size=2, timeout_s=WAIT_S), generation=1, device=CPU)

    with ThreadPoolExecutor(2) as threads:
        group, lost = threads.map(connect, range(2))
        acting, losing = threads.submit(act, group), threads.submit(act, lost)
        try:
            acting.result(WAIT_S)
        finally:
            lost.close()
            losing.exception(WAIT_S)
            for each in (group, lost):  # no thread of gloo may do that
                each.release()


@pytest.fixture
def _lost_after_the_first_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 sends its parts of each sum, and never sends the sum of its own."""
    share = TreeExchange._begin_sharing

    def share_unless_lost(self: TreeExchange, *which: int) -> None:
        if self._group.rank == 1:
            raise PeerLost("this is the lost one")
        close_soon(self._group)
        share(self, *which)

    monkeypatch.setattr(TreeExchange, "_begin_sharing", share_unless_lost)


def finish(group: Group) -> None:
    summed = TensorSum(TWO, group)
    (micro_batch,) = TWO.micro_batches(group.rank)
    summed.begin_last(micro_batch, like := [torch.ones(3)])
    summed.push(micro_batch, [torch.ones(3)])
    summed.finish(like)
    summed.check_received()


@pytest.mark.usefixtures("_lost_after_the_first_exchange")
def test_an_aborted_sum_is_no_sum() -> None:
    with pytest.raises(PeerLost):
        beside_a_lost_peer(finish)


@pytest.mark.usefixtures("_lost_after_the_first_exchange")
def test_the_buffers_of_an_aborted_step_are_those_before_it() -> None:
    models = [nn.BatchNorm1d(2), nn.BatchNorm1d(2)]
    before = {name: buffer.clone() for name, buffer in models[0].named_buffers()}

    def combine(group: Group) -> None:
        model = models[group.rank]
        buffers = Buffers(model, TWO.computed_by(group.rank, 2))
        buffers.activate(0)
        model(torch.randn(4, 2))
        buffers.activate(None)
        try:
            buffers.combine([0, 1, 2], TensorSum(TWO, group))
        finally:
            buffers.roll_back()

    with pytest.raises(PeerLost):
        beside_a_lost_peer(combine)
    for name, buffer in models[0].named_buffers():
        assert buffer.equal(before[name]), name


def test_a_wrapper_that_is_made_during_a_loss_changes_no_parameter() -> None:
    model = nn.Linear(2, 1)
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def wrap(group: Group) -> None:
        if group.rank == 1:
            return
        close_soon(group)
        FastSteps(
            model,
            carried=CarriedGradients(model, torch.optim.SGD(model.parameters())),
            members=GenerationMembers(group, TWO),
            device=CPU,
            job_seed=0,
            find_unused_parameters=False,
            cpu_throttle=CpuThrottle(1.0),
            stopwatch=Stopwatch(CPU),
        )

    with pytest.raises(PeerLost):
        beside_a_lost_peer(wrap)
    assert all(parameter.equal(value) for parameter, value in zip(model.parameters(), before, strict=True))
