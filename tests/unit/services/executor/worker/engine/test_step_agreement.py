"""What workers agree on: equal states have equal fingerprints, and compute times are compared for equal work."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.additional_state import AdditionalState
from elasticflow.services.executor.worker.engine.gradient_digest import COMPARE_TENSORS_EVERY
from elasticflow.services.executor.worker.engine.step_agreement import (
    Agreement,
    Fingerprint,
    GenerationMembers,
    fingerprint,
)
from elasticflow.services.executor.worker.group.groups import DeviceIdentity, Group
from elasticflow.services.executor.worker.group.nested_tensors import flatten
from elasticflow.services.executor.worker.group.transport import Membership
from tests.unit.services.executor.worker.group.test_groups import CPU, WAIT_S

NONE = Fingerprint()


def made(dtype=torch.float32, size=5):
    model = nn.Linear(size, 3).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def of(model, optimizer, iteration=COMPARE_TENSORS_EVERY):
    return fingerprint(optimizer, model.parameters(), AdditionalState({}, optimizer), iteration)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 5])
def test_one_flipped_bit_shows_when_parameters_are_compared(dtype, size):
    (model, optimizer), other = made(dtype, size), made(dtype, size)
    assert of(model, optimizer) == of(*other)
    model.bias.data.view(torch.uint8)[1] ^= 1
    assert of(model, optimizer) != of(*other)
    assert of(model, optimizer, 7) == of(*other, 7)


def test_another_learning_rate_shows_in_each_step():
    (model, optimizer), other = made(), made()
    optimizer.param_groups[0]["lr"] *= 1 + 1e-12
    assert of(model, optimizer, 7) != of(*other, 7)


def agreed(
    virtual_nodes: VirtualNodes, *compute_s: float, fingerprints: Sequence[Fingerprint] = (), arithmetics: str = ""
) -> Agreement:
    """By workers that took so long. The metric of each virtual node is its number."""
    store, size = dist.HashStore(), len(compute_s)
    have_left = threading.Barrier(size)  # the workers are threads: closing one's connections closes those of others

    def agree(rank: int) -> Agreement:
        group = Group(Membership(store, rank=rank, size=size, timeout_s=WAIT_S), generation=1, device=CPU)
        group.identities = tuple(DeviceIdentity(host="a", arithmetic=each) for each in arithmetics or "a" * size)
        members = GenerationMembers(group, virtual_nodes)
        rows = [[float(part.virtual_node)] for part in members.computed]
        agreement = members.agree(
            stop=False,
            over=False,
            ready_generation=0,
            fingerprint=fingerprints[rank] if fingerprints else Fingerprint(),
            compute_s=compute_s[rank],
            rows=rows,
        )
        members.leave()
        have_left.wait(WAIT_S)
        group.close()
        group.release()
        return agreement

    with ThreadPoolExecutor(size) as threads:
        first, *others = threads.map(agree, range(size))
    assert others == [first] * (size - 1)
    return first


@pytest.mark.parametrize(
    ("arithmetics", "fingerprints", "are_same"),
    [
        ("aaa", [(1, 5), (1, 5), (1, 5)], True),
        ("aaa", [(1, 5), (1, 5), (1, 6)], False),
        ("aab", [(1, 5), (1, 5), (1, 6)], True),
        ("aba", [(1, 5), (1, 5), (1, 6)], False),
        ("abc", [(1, 5), (1, 6), (1, 7)], True),
        ("abc", [(1, 5), (1, 5), (2, 5)], False),
    ],
)
def test_tensors_are_compared_between_workers_that_compute_the_same_bits(arithmetics, fingerprints, are_same):
    """Settings between all."""
    nodes = VirtualNodes(count=3, global_batch_size=3)
    agreement = agreed(
        nodes, 1.0, 1.0, 1.0, fingerprints=[Fingerprint(*each) for each in fingerprints], arithmetics=arithmetics
    )
    assert agreement.same == are_same


def test_settings_do_not_depend_on_the_kind_of_device():
    """Neither those of an object with tensors, nor a learning rate in a tensor."""
    structures = [repr(flatten({"average": torch.empty(3, device=kind)}, [])) for kind in ("cpu", "meta")]
    assert structures[0] == structures[1]


def test_compute_times_are_per_sample_where_workers_have_unequal_numbers_of_virtual_nodes():
    """The surplus worker repeats one virtual node. Per step, the first worker would be a straggler."""
    nodes = VirtualNodes(count=8, global_batch_size=16, counts_by_rank=(5, 0, 2, 1))
    assert agreed(nodes, 0.5, 0.1, 0.2, 0.1).compute_s == pytest.approx([0.8] * 4)
    slow_s = agreed(nodes, 0.5, 0.1, 0.4, 0.1).compute_s
    assert slow_s == pytest.approx([0.8, 0.8, 1.6, 0.8])


def test_a_mean_counts_samples_and_not_virtual_nodes():
    members = GenerationMembers(None, VirtualNodes(count=2, global_batch_size=3))
    assert members.means([[3.0], [6.0]]) == pytest.approx([5.0]), "the second one has two of three samples"


@pytest.mark.parametrize("counts", [(), (5, 0, 2, 1), (0, 0, 0, 8), (1, 1, 1, 5)])
def test_means_do_not_depend_on_the_numbers_of_virtual_nodes(counts):
    """21 samples: the virtual nodes have two or three."""
    nodes = VirtualNodes(count=8, global_batch_size=21, counts_by_rank=counts)
    alone = GenerationMembers(None, VirtualNodes(count=8, global_batch_size=21))
    rows = [[float(v)] for v in range(8)]
    expected = alone.agree(
        stop=False, over=False, ready_generation=0, fingerprint=Fingerprint(), compute_s=1.0, rows=rows
    )
    assert agreed(nodes, 1.0, 1.0, 1.0, 1.0).means == expected.means


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.complex64])
def test_a_tensor_that_begins_within_a_word_has_the_fingerprint_of_its_copy(dtype):
    """For example a parameter in a flat buffer, which lies elsewhere on a worker that has loaded it."""
    _, optimizer = made()
    view = torch.arange(9).to(dtype)[1:]
    both = [fingerprint(optimizer, [each], AdditionalState({}, optimizer), 0) for each in (view, view.clone())]
    assert both[0] == both[1] != fingerprint(optimizer, [view + 1], AdditionalState({}, optimizer), 0)
