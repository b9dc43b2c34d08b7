"""Micro-batches start a step with equal buffers, whose changes are combined; and they find equal shared gradients."""

import pytest
import torch
from torch import nn

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.gradients_and_buffers import Buffers, SharedGradients
from elasticflow.services.executor.worker.engine.tree_reduce import TensorSum
from elasticflow.services.executor.worker.interface import TrainingFailed

ONE = VirtualNodes(count=1, global_batch_size=4)
TWO = VirtualNodes(count=2, global_batch_size=4)
UNEVEN = VirtualNodes(count=2, global_batch_size=3)


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([10.0]))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("constant", torch.tensor([0.1]))
        self.register_buffer("nothing", None)


def one_step(model: nn.Module, virtual_nodes: VirtualNodes, turns) -> Buffers:
    """turns: (virtual node, its action), in order."""
    return one_step_of(Buffers(model, virtual_nodes.computed_by(0, 1)), model, virtual_nodes, turns)


def one_step_of(buffers: Buffers, model: nn.Module, virtual_nodes: VirtualNodes, turns) -> Buffers:
    buffers.begin_step()
    for virtual_node, act in turns:
        buffers.activate(virtual_node)
        act(model)
    buffers.activate(None)
    changed = sorted({i for flags in buffers.changes() for i, flag in enumerate(flags) if flag})
    buffers.combine(changed, TensorSum(virtual_nodes, None))
    return buffers


class Keys(nn.Module):
    """A queue as MoCo has it, and other buffers of which a part of a batch writes some elements."""

    def __init__(self, *, zeros: bool) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(3, 20) if zeros else torch.randn(3, 20))
        self.register_buffer("pointer", torch.tensor(0))
        self.register_buffer("losses", torch.randn(20))
        self.register_buffer("centers", torch.randn(20, 3))

    def write(self, keys: torch.Tensor) -> None:
        at = int(self.pointer)
        self.queue[:, at : at + keys.shape[1]] = keys
        self.pointer += keys.shape[1]


@pytest.mark.parametrize(("zeros", "num_steps"), [(False, 1), (True, 2)])
def test_keys_of_parts_in_a_queue_are_refused(zeros, num_steps):
    model = Keys(zeros=zeros)
    buffers = Buffers(model, TWO.computed_by(0, 1))

    def step():
        one_step_of(buffers, model, TWO, [(v, lambda m: m.write(torch.randn(3, 2))) for v in range(2)])

    for _ in range(num_steps - 1):
        step()
    with pytest.raises(TrainingFailed, match=r"to the same places of queue of Keys.*: of 4 samples, 2 means would"):
        step()


def test_keys_of_the_whole_batch_and_statistics_in_large_buffers_are_no_queue():
    model, keys = Keys(zeros=False), torch.randn(3, 4)

    def act(part):
        def write(model):
            model.write(keys)
            model.losses[5] = float(part)
            model.centers[[part, part + 4]] *= 0.9  # of the labels that it has

        return write

    buffers = Buffers(model, TWO.computed_by(0, 1))
    for _ in range(3):
        one_step_of(buffers, model, TWO, [(v, act(v)) for v in range(2)])
    torch.testing.assert_close(model.queue[:, 8:12], keys)
    assert model.losses[5] == 0.5


def test_changed_floats_are_averaged_by_samples_and_others_come_from_virtual_node_0():
    def first(model):
        model.mean += 3.0
        model.count += 1

    def second(model):
        assert model.mean.item() == 10.0, "every virtual node begins with the same"
        model.mean += 6.0
        model.count += 7

    model = Holder()
    one_step(model, UNEVEN, [(0, first), (1, second)])  # 1 and 2 samples
    assert model.mean.item() == pytest.approx(10.0 + 3.0 / 3 + 6.0 * 2 / 3)
    assert model.count.item() == 1


def test_each_micro_batch_finds_its_own_buffers_when_it_resumes():
    def adds(amount, expected):
        def act(model):
            assert model.mean.item() == expected
            model.mean += amount

        return act

    model = Holder()
    one_step(model, TWO, [(0, adds(1.0, 10.0)), (1, adds(2.0, 10.0)), (0, adds(1.0, 11.0)), (1, adds(2.0, 12.0))])
    assert model.mean.item() == 13.0


def test_unchanged_buffers_keep_their_bits_and_identity():
    model = Holder()
    constant = model.constant
    one_step(model, UNEVEN, [(0, lambda _: None), (1, lambda m: m.mean.add_(1.0))])
    assert model.constant is constant
    assert model.constant.item() == torch.tensor(0.1).item()


def test_a_replaced_buffer_counts_as_changed():
    model = Holder()
    mean = model.mean

    def replace(model):
        model.mean = model.mean + 2.0

    one_step(model, TWO, [(0, replace), (1, replace)])
    assert model.mean is mean
    assert mean.item() == 12.0


def test_a_replaced_buffer_stays_when_its_only_micro_batch_resumes():
    def replace(model):
        model.mean = model.mean + 2.0

    def read(model):
        assert model.mean.item() == 12.0

    model = Holder()
    one_step(model, ONE, [(0, replace), (0, read)])
    assert model.mean.item() == 12.0


def test_statistics_of_a_layer_that_does_not_train_keep_their_bits():
    model = nn.BatchNorm1d(1, momentum=0.5).eval()
    model.running_mean.fill_(0.1)
    before = model.running_mean.clone()
    one_step(model, UNEVEN, [(v, lambda m: m(torch.tensor([[1.0], [3.0]]))) for v in range(2)])
    assert torch.equal(model.running_mean, before)


def test_statistics_that_torch_writes_without_counting_versions_are_seen():
    model = nn.BatchNorm1d(1, momentum=0.5)
    one_step(
        model,
        TWO,
        [(0, lambda m: m(torch.tensor([[1.0], [3.0]]))), (1, lambda m: m(torch.tensor([[5.0], [7.0]])))],
    )
    assert model.running_mean.item() == 0.5 * 4.0
    assert model.num_batches_tracked.item() == 1


class Uncounted(nn.BatchNorm1d):
    """As a fused layer: it does not count its passes."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(input, self.running_mean, self.running_var, training=True)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(2), Uncounted(2)])
def test_statistics_that_change_again_after_the_optimizers_step_are_seen(layer):
    points = torch.arange(12.0).reshape(2, 2, 3)
    buffers = one_step(layer, TWO, [(0, lambda m: m(points)), (1, lambda m: m(points))])
    buffers.activate(1)
    layer(points)
    buffers.activate(None)
    mean = [name for name, _ in layer.named_buffers()].index("running_mean")
    assert [changed[mean] for changed in buffers.changes()] == [0.0, 1.0]


def test_consecutive_steps_start_with_combined_buffers():
    model = Holder()
    buffers = Buffers(model, TWO.computed_by(0, 1))
    for step in range(3):
        for virtual_node in range(2):
            buffers.activate(virtual_node)
            assert model.mean.item() == 10.0 + step
            model.mean += 1.0
        buffers.activate(None)
        buffers.combine([0], TensorSum(TWO, None))
    assert model.mean.item() == 13.0


def test_micro_batches_follow_the_same_rule():
    def adds(amount):
        def act(model):
            assert model.mean.item() == 10.0
            model.mean += amount
            model.count += 1

        return act

    model = Holder()
    one_step(
        model,
        VirtualNodes(count=1, global_batch_size=3, micro_batch_size=2),
        [(0, adds(3.0)), (1, adds(6.0))],
    )  # 1 and 2 samples
    assert model.mean.item() == pytest.approx(10.0 + 3.0 / 3 + 6.0 * 2 / 3)
    assert model.count.item() == 1


def test_gradients_that_one_call_clips_are_whole_for_the_next() -> None:
    parameters = [torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)]
    shared = SharedGradients()
    shared.share(parameters, [torch.tensor([3.0, 4.0]), None], before=[None, None], num_calls=2)
    for _ in range(2):
        shared.restore()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        assert norm.item() == 5.0
    assert parameters[0].grad is not None
    assert parameters[0].grad.norm().item() < 1.01
    assert parameters[1].grad is None


def test_earlier_gradients_are_added_and_kept_where_no_gradient_follows() -> None:
    parameters = [torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)]
    shared = SharedGradients()
    before = [torch.tensor([10.0]), torch.tensor([20.0])]
    shared.share(parameters, [torch.tensor([1.0]), None], before=before, num_calls=1)
    shared.restore()
    assert [parameter.grad.item() for parameter in parameters if parameter.grad is not None] == [11.0, 20.0]


def test_cleared_gradients_are_not_restored() -> None:
    parameter = torch.zeros(1, requires_grad=True)
    shared = SharedGradients()
    shared.share([parameter], [torch.tensor([1.0])], before=[None], num_calls=2)
    shared.clear()
    parameter.grad = torch.tensor([7.0])
    shared.restore()
    assert parameter.grad.item() == 7.0
