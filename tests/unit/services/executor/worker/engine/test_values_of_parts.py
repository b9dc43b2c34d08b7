"""Numbers and losses that user code takes from one part of a batch as if that were the whole."""

import pytest
import torch
import torch._dynamo.utils
from torch import nn
from torch.nn import functional

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.values_of_parts import (
    CountsOfParts,
    DependentValues,
    FoundLosses,
    PartialLosses,
    sum_of_part,
)

FOUR_OF_EIGHT = VirtualNodes(count=4, global_batch_size=32)
POINTS, LABELS, WEIGHT = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([1.0, 2.0, 3.0])


def found(virtual_nodes, states) -> list[str]:
    """Names after each step. states: the values of user code then."""
    remaining = iter(states)
    counts = CountsOfParts(virtual_nodes, lambda: next(remaining))
    return [name for _ in states for name in counts.step_ended()]


def grown(by, **others):
    return [{"self.seen": by * step, **others} for step in range(1, 6)]


@pytest.mark.parametrize("by", [8, 8 * 64])
def test_samples_or_tokens_of_a_part_are_found_once(by):
    assert found(FOUR_OF_EIGHT, grown(by, other=3)) == ["self.seen"]


@pytest.mark.parametrize(
    ("virtual_nodes", "states"),
    [
        (FOUR_OF_EIGHT, grown(1)),
        (FOUR_OF_EIGHT, grown(0)),
        (FOUR_OF_EIGHT, grown(-8)),
        (FOUR_OF_EIGHT, [{"size": 8}, {"size": 16}, {"size": 8}, {"size": 16}]),
        (FOUR_OF_EIGHT, [{"is": True}, {"is": False}, {"is": True}, {"is": False}]),
        (VirtualNodes(count=1, global_batch_size=32), grown(32)),
        (VirtualNodes(count=32, global_batch_size=32), grown(1)),
    ],
    ids=["steps", "constant", "down", "no count", "a switch", "one part", "one sample a part"],
)
def test_other_numbers_are_none(virtual_nodes, states):
    assert found(virtual_nodes, states) == []


@pytest.fixture(autouse=True)
def nothing_is_compiled():
    """By other tests of this process."""
    counters = torch._dynamo.utils.counters
    before = counters.pop("frames", None)
    yield
    counters.pop("frames", None)
    if before is not None:
        counters["frames"] = before


def watching(virtual_nodes=FOUR_OF_EIGHT) -> PartialLosses:
    """Behind its first step."""
    losses = PartialLosses(virtual_nodes)
    with losses.watched():
        pass
    assert losses.step_ended() == FoundLosses()
    return losses


def divided(call, virtual_nodes=FOUR_OF_EIGHT) -> list[str]:
    losses = watching(virtual_nodes)
    with losses.watched():
        call()
    return [*losses.step_ended().divided, *losses.step_ended().divided]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: functional.cross_entropy(POINTS, LABELS, WEIGHT), "cross_entropy() with weight"),
        (lambda: nn.CrossEntropyLoss(weight=WEIGHT)(POINTS, LABELS), "cross_entropy() with weight"),
        (lambda: nn.CrossEntropyLoss(ignore_index=2)(POINTS, LABELS), "cross_entropy() with ignore_index"),
        (lambda: functional.nll_loss(POINTS, LABELS, ignore_index=0), "nll_loss() with ignore_index"),
    ],
)
def test_a_loss_that_is_divided_by_what_a_part_has_is_found_once(call, name):
    assert divided(call) == [name]
    assert divided(call, VirtualNodes(count=1, global_batch_size=32)) == []
    with torch.no_grad():
        assert divided(call) == [], "an evaluation"


@pytest.mark.parametrize(
    "call",
    [
        lambda: functional.cross_entropy(POINTS, LABELS),
        lambda: functional.cross_entropy(POINTS, LABELS, WEIGHT, reduction="sum"),
        lambda: functional.cross_entropy(POINTS, functional.softmax(POINTS, -1)),
        lambda: functional.mse_loss(POINTS, POINTS),
    ],
    ids=["no weight", "a sum", "probabilities", "another loss"],
)
def test_other_losses_are_not(call):
    assert divided(call) == []


def test_a_job_that_compiles_is_compiled_once_and_not_watched():
    """Compiled again for the steps behind the watch, it would stand still there, and meet its most shapes earlier."""
    made, losses = list[object](), PartialLosses(FOUR_OF_EIGHT)

    def backend(graph, _):
        made.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(lambda: functional.cross_entropy(POINTS, LABELS, WEIGHT), backend=backend)
    for _ in range(6):
        with losses.watched():
            compiled()
        assert losses.step_ended() == FoundLosses()
    assert len(made) == 1


def test_what_is_compiled_in_a_watched_step_has_the_graph_of_any_other():
    """With other graphs, the first steps of each process would have other bits."""
    made, losses = list[list[str]](), watching()

    def backend(graph, _):
        made.append([node.name for node in graph.graph.nodes])
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(lambda points, labels: functional.cross_entropy(points.sin(), labels), backend=backend)
    with losses.watched():
        compiled(POINTS, LABELS)
    compiled(POINTS, LABELS)
    watched, later = made
    assert watched == later


def test_a_loss_within_vmap_is_not_looked_into():
    def loss(points, label):
        return functional.cross_entropy(points[None], label[None])

    with watching().watched():
        losses = torch.func.vmap(loss)(POINTS, LABELS)
    torch.testing.assert_close(losses, functional.cross_entropy(POINTS, LABELS, reduction="none"))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: functional.cross_entropy(POINTS, LABELS, reduction="sum"), "cross_entropy() with reduction='sum'"),
        (
            lambda: nn.BCEWithLogitsLoss(reduction="sum")(POINTS, POINTS.sigmoid()),
            "binary_cross_entropy_with_logits() with reduction='sum'",
        ),
        (lambda: nn.MSELoss(reduction="sum")(POINTS, POINTS + 1), "mse_loss() with reduction='sum'"),
        (lambda: nn.MSELoss()(POINTS, POINTS + 1), None),
        (lambda: functional.cross_entropy(POINTS, LABELS, reduction="none"), None),
    ],
)
def test_losses_that_add_up_a_part_are_found(call, name):
    losses = watching()
    with losses.watched():
        call()
    assert losses.step_ended().summed == (() if name is None else (name,))


@pytest.mark.parametrize(
    ("values", "differing"),
    [
        ([1, 2, 9], [(1, 2)]),
        ([1, 1, 2, 9], [(1, 2)]),
        ([1, 1, 9], []),  # the last pass alone has the effect of a step
        ([1, 9], []),
        ([9], []),
    ],
)
def test_a_value_that_differs_between_passes_before_the_last_one_depends_on_the_part(values, differing):
    noted, remaining = [], iter(values[:-1] * 3)
    passes = DependentValues(lambda: {"seen": next(remaining)}, lambda *two: noted.append(two))
    for _ in range(9):  # only the first three steps are compared
        for number in range(1, len(values) + 1):
            passes.pass_ended(is_last=number == len(values))
    assert noted == [({"seen": one}, {"seen": other}) for one, other in differing] * 3


def test_what_begins_later_is_found_in_a_step_that_is_watched_again_and_told_once():
    losses, loss = PartialLosses(FOUR_OF_EIGHT), nn.CrossEntropyLoss()
    found = list[tuple[int, tuple[str, ...]]]()
    for step in range(20):
        if step == 5:
            loss.weight = WEIGHT
        if step in (8, 16):
            losses.watch_again()
        with losses.watched():
            loss(POINTS, LABELS)
        if names := losses.step_ended().divided:
            found.append((step, names))
    assert found == [(8, ("cross_entropy() with weight",))]


def test_counts_and_values_that_begin_later_are_found_in_steps_that_are_watched_again():
    now = {"seen": 0}
    counts = CountsOfParts(FOUR_OF_EIGHT, lambda: dict(now))
    noted = list[int]()
    passes = DependentValues(lambda: {"value": number if step > 5 else 0}, lambda *_: noted.append(step))
    told = list[tuple[int, str]]()
    for step in range(20):
        if step in (8, 16):
            counts.watch_again()
            passes.watch_again()
        now["seen"] += 8 if step > 5 else 0
        told += [(step, name) for name in counts.step_ended()]
        for number in range(3):
            passes.pass_ended(is_last=number == 2)
    assert told == [(10, "seen")]
    assert noted == [8, 16]


PREDICTED = torch.randn(8, 3, requires_grad=True)
SQUARES, OF_SAMPLES = PREDICTED.square(), functional.cross_entropy(PREDICTED, torch.arange(8) % 3, reduction="none")
MASK = torch.arange(8) < 6


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (SQUARES.sum() / 32, "sum() divided by 32"),
        (-(SQUARES.sum(1).sum() / 32), "sum() divided by 32"),
        (SQUARES.sum() * (1 / 32), "sum() divided by 32"),
        (SQUARES.sum() / 4 / 8, "sum() divided by 32"),
        (OF_SAMPLES.sum() / 32, "sum() divided by 32"),
        (OF_SAMPLES.sum(), "sum()"),
        (SQUARES.sum(), "sum()"),
        (SQUARES.mean(), ""),
        (SQUARES.sum() / len(SQUARES), ""),
        (SQUARES.sum() / SQUARES.numel(), ""),
        (SQUARES.sum(1).mean(), ""),
        (SQUARES.mean(1).sum() / 8, ""),
        ((OF_SAMPLES * MASK).sum() / MASK.sum(), ""),
        (SQUARES.mean(0).sum(), ""),
        (torch.stack([SQUARES.mean(), OF_SAMPLES.mean()]).sum(), ""),
        (functional.cross_entropy(PREDICTED, torch.arange(8) % 3), ""),
        (OF_SAMPLES.mean() + 0.1 * PREDICTED.square().sum(), ""),
        (PREDICTED.new_ones(4, 8, requires_grad=True).square().sum() / 32, ""),
    ],
)
def test_a_sum_by_hand_is_found_by_its_graph_if_it_is_divided_by_the_batch_or_by_nothing(loss, name):
    assert sum_of_part(loss, FOUR_OF_EIGHT) == name


def test_a_sum_by_hand_is_found_if_all_backward_passes_have_it():
    """A divisor that comes from the data may be the batch by chance."""
    for divisors, expected in (((32, 32, 32), ("sum() divided by 32",)), ((32, 31, 32), ())):
        losses, summed = watching(), tuple[str, ...]()
        for divisor in divisors:
            with losses.watched():
                (PREDICTED.square().sum() / divisor).backward()
            summed += losses.step_ended().summed
        assert summed == expected
