"""Workers agree on metrics one step late, or at once; and on their names once in each generation."""

# pyright: reportPrivateImportUsage=false

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.step_agreement import Fingerprint, GenerationMembers
from elasticflow.services.executor.worker.engine.step_metrics import StepMetrics
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.transport import Membership
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.device import DeviceNumbers, number_of

TIMEOUT_S = 10.0  # of a collective; unreached unless the test fails
TWO = VirtualNodes(count=2, global_batch_size=3)  # of 1 and 2 samples


def returned(loss: float, **more: float) -> DeviceNumbers:
    return DeviceNumbers([{"loss": torch.tensor(loss), **more}])


class Members(GenerationMembers):
    """A worker that is alone, and the values for which it asks rank 0."""

    def __init__(self) -> None:
        super().__init__(None, VirtualNodes(count=1, global_batch_size=1))
        self.asked: list[Any] = []

    def from_rank_0(self, value: Any) -> Any:
        self.asked.append(value)
        return value


def test_the_values_of_a_step_are_agreed_on_with_the_next_one() -> None:
    metrics = StepMetrics(Members())
    assert metrics.begin(returned(1.0), 0) == [()]
    assert metrics.are_due
    assert metrics.begin(returned(2.0), 1) == [(1.0,)]
    assert metrics.named([1.0]) == {"loss": 1.0}
    assert metrics.settle() == {"loss": 2.0}
    assert not metrics.are_due
    assert metrics.settle() == {}
    assert metrics.begin(returned(3.0), 2) == [()]


def test_values_that_are_needed_at_once_are_agreed_on_in_their_own_step() -> None:
    metrics = StepMetrics(Members(), are_needed_at_once=True)
    assert metrics.begin(returned(1.0), 0) == [(1.0,)]
    assert not metrics.are_due
    assert metrics.settle() == {}


def test_after_a_loss_the_values_that_were_due_are_forgotten() -> None:
    metrics = StepMetrics(Members())
    metrics.begin(returned(1.0), 0)
    assert metrics.forget()
    assert not metrics.forget()
    assert metrics.settle() == {}


def test_the_names_are_agreed_on_once_and_stay() -> None:
    members = Members()
    metrics = StepMetrics(members)
    for iteration in range(2):
        metrics.begin(returned(1.0, norm=2.0), iteration)
    assert members.asked == [(("loss", "norm"), False)]
    with pytest.raises(TrainingFailed, match="the metrics loss in iteration 2, but loss, norm in the first"):
        metrics.begin(returned(1.0), 2)


def by_two(act: Callable[[GenerationMembers], Any]) -> list[Any]:
    store = dist.HashStore()

    def work(rank: int) -> Any:
        group = Group(
            Membership(store, rank=rank, size=2, timeout_s=TIMEOUT_S), generation=2, device=torch.device("cpu")
        )
        try:
            return act(GenerationMembers(group, TWO))
        finally:
            group.release()

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(work, range(2)))


@pytest.mark.parametrize("rank_that_knew", [0, 1])
def test_survivors_continue_together_although_only_one_knew_the_names(rank_that_knew: int) -> None:
    """Otherwise one would wait for the names, and one for the agreement after them."""

    def survive(members: GenerationMembers) -> dict[str, float]:
        metrics = StepMetrics(members, names=("loss",) if members.rank == rank_that_knew else None)
        metrics.begin(returned(members.rank), 0)
        return metrics.settle()

    assert by_two(survive) == [{"loss": pytest.approx(2 / 3)}] * 2


def test_all_workers_follow_rank_0_if_only_some_have_a_sink() -> None:
    def step(members: GenerationMembers) -> list[tuple[float, ...]]:
        return StepMetrics(members, are_needed_at_once=members.rank == 1).begin(returned(members.rank), 0)

    assert by_two(step) == [[()], [()]]


def test_settled_values_have_the_bits_of_the_agreement() -> None:
    def agree(members: GenerationMembers) -> tuple[tuple[float, ...], tuple[float, ...]]:
        rows = [(0.1 * (members.rank + 1), 0.7)]
        agreement = members.agree(
            stop=False, over=False, ready_generation=0, fingerprint=Fingerprint(), compute_s=0.0, rows=rows
        )
        return agreement.means, members.means(rows)

    (agreed, settled), other = by_two(agree)
    assert agreed == settled
    assert other == (agreed, settled)


def test_a_loss_while_values_are_due_leaves_them_due() -> None:
    class Lost(Members):
        def means(self, rows: Any) -> tuple[float, ...]:
            raise PeerLost("the other worker died")

    metrics = StepMetrics(Lost())
    metrics.begin(returned(1.0), 0)
    with pytest.raises(PeerLost):
        metrics.settle()
    assert metrics.forget()


def test_a_number_keeps_the_value_of_its_moment() -> None:
    total = torch.tensor(1.5, dtype=torch.bfloat16)
    numbers = DeviceNumbers(
        [{"total": number_of(total), "plain": number_of(2)}, {"total": number_of(True), "plain": 3.0}]
    )
    total += 1
    assert numbers.read() == [{"total": 1.5, "plain": 2.0}, {"total": 1.0, "plain": 3.0}]


@pytest.mark.parametrize("value", [torch.ones(2), torch.tensor(1j), "text", None])
def test_what_is_no_number_is_refused_at_once(value: Any) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        number_of(value)
