"""What a process reads ahead is what the worker would have read, and where it cannot, the worker reads by itself."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from services.executor.worker.data_order import Part
from services.executor.worker.loading import SampleReader
from services.executor.worker.pacing import Pacer
from services.executor.worker.read_ahead import ReadAhead


class Batch(NamedTuple):
    points: torch.Tensor
    more: Any


def part(iteration: int, virtual_node: int = 0, samples: tuple[int, ...] = (1, 2, 3)) -> Part:
    return Part(iteration=iteration, virtual_node=virtual_node, micro_batch=0, position=0, samples=samples)


class Reading:
    def __init__(self, read: Callable[[Part], Any]) -> None:
        self._read = read

    def __call__(self, part: Part) -> Any:
        return self._read(part)

    def turn(self, part: Part) -> int:
        return part.iteration + part.virtual_node


@pytest.fixture
def reading() -> Iterator[Callable[..., ReadAhead]]:
    made: list[ReadAhead] = []

    def make(read: Callable[[Part], Any], num_processes: int = 1) -> ReadAhead:
        pacer = Pacer(1.0)
        made.append(
            ReadAhead(Reading(read), num_processes=num_processes, device=torch.device("cpu"), pacer=pacer)
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("num_processes", [0, 1, 3])
def test_batches_come_in_the_order_asked_for_whoever_reads_them(reading, num_processes):
    ahead = reading(lambda part: (part.samples, part.virtual_node), num_processes)
    for iteration in range(5):
        due = [part(iteration, v, samples=(iteration, v)) for v in range(4)]
        ahead.expect([*due, *(part(iteration + 1, v, samples=(iteration + 1, v)) for v in range(4))])
        assert ahead.take(due) == [((iteration, v), v) for v in range(4)]


def anything(_: Part) -> Any:
    x = torch.arange(12.0).reshape(3, 4)
    return {
        "same": [x, x],
        "named": Batch(x.to(torch.bfloat16), np.arange(3)),
        "transposed": x.t(),
        "part of more": x[1:2],
        "empty": torch.empty(0, 5, dtype=torch.int16),
        "number": torch.tensor(True),
        "trained": x.clone().requires_grad_(),
        "sparse": x.to_sparse(),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "else": ("text", None, 1.5, {3}),
    }


def test_any_batch_arrives_as_it_was_made(reading):
    here, there = anything(part(0)), None
    ahead = reading(anything)
    ahead.expect([part(0)])
    (there,) = ahead.take([part(0)])
    assert there["same"][0] is there["same"][1]
    assert type(there["named"]) is Batch
    assert there["else"] == here["else"]
    assert there["named"].more.tolist() == [0, 1, 2]
    tensors = ["transposed", "part of more", "empty", "number", "trained", "sparse", "conjugate"]
    pairs = [(here[name], there[name]) for name in tensors]
    for mine, theirs in [
        *pairs,
        (here["same"][0], there["same"][0]),
        (here["named"].points, there["named"].points),
    ]:
        assert (mine.dtype, mine.layout, mine.requires_grad) == (
            theirs.dtype,
            theirs.layout,
            theirs.requires_grad,
        )
        assert mine.layout is not torch.strided or mine.stride() == theirs.stride()
        assert torch.equal(
            mine.to_dense() if mine.is_sparse else mine, theirs.to_dense() if theirs.is_sparse else theirs
        )


class Noisy:
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(1) + np.random.rand() + index


def test_what_is_drawn_while_reading_disturbs_nobody_and_is_the_same_in_any_process(reading):
    read = SampleReader(Noisy(), torch.cat, seed=3)
    here = [read(part(i)) for i in range(4)]
    torch.manual_seed(1)
    undisturbed = [torch.rand(1000) for _ in range(3)]
    ahead = reading(read)
    torch.manual_seed(1)
    ahead.expect([part(0)])
    for i in range(3):
        ahead.expect([part(i), part(i + 1)])
        assert torch.equal(torch.rand(1000), undisturbed[i])
        assert torch.equal(ahead.take([part(i)])[0], here[i])


def dies(_: Part) -> Any:
    if os.getpid() != WORKER:
        os.kill(os.getpid(), signal.SIGKILL)
    return "read here"


def raises(_: Part) -> Any:
    if os.getpid() != WORKER:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
    return "read here"


def cannot_be_sent(_: Part) -> Any:
    return "read here" if os.getpid() == WORKER else (lambda: None)


WORKER = os.getpid()


@pytest.mark.parametrize("read", [dies, raises, cannot_be_sent])
def test_the_worker_reads_where_its_process_cannot(reading, read):
    ahead = reading(read)
    for iteration in range(3):
        ahead.expect([part(iteration), part(iteration + 1)])
        assert ahead.take([part(iteration)]) == ["read here"]


def test_what_is_wrong_with_the_data_set_is_raised_as_it_is_when_it_is_due(reading):
    def read(part: Part) -> int:
        if part.iteration == 1:
            raise KeyError("no such sample")
        return part.iteration

    ahead = reading(read)
    ahead.expect([part(0), part(1)])
    assert ahead.take([part(0)]) == [0]
    with pytest.raises(KeyError, match="no such sample"):
        ahead.take([part(1)])


def test_who_comes_to_other_parts_than_expected_keeps_what_fits(reading):
    ahead = reading(lambda part: (part.iteration, part.virtual_node, os.getpid()))
    ahead.expect([part(7, v) for v in range(4)])
    ahead.expect([part(7, v) for v in range(2, 6)])
    taken = ahead.take([part(7, v) for v in range(2, 6)])
    assert [each[:2] for each in taken] == [(7, v) for v in range(2, 6)]
    assert WORKER not in {each[2] for each in taken}
    ahead.expect([])
    assert ahead.take([part(7, 2)]) == [(7, 2, WORKER)], "nothing that was forgotten comes back"


def test_what_the_process_uses_is_charged(reading):
    charged: list[float] = []

    class Charged(Pacer):
        def charge(self, cpu_s: float) -> None:
            charged.append(cpu_s)

    def read(_: Part) -> float:
        return sum(float(i) for i in range(100_000))

    ahead = ReadAhead(Reading(read), num_processes=1, device=torch.device("cpu"), pacer=Charged(1.0))
    ahead.expect([part(0), part(1)])
    ahead.take([part(0), part(1)])
    ahead.close()
    assert len(charged) == 2
    assert min(charged) > 0
