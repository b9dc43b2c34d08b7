"""A reader process reads what the worker would have read; if it fails, the worker reads."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from elasticflow.services.executor.worker.data.read_ahead import ReadAhead
from elasticflow.services.executor.worker.data.sample_order import Part, Partitions, SampleOrder
from elasticflow.services.executor.worker.data.sample_readers import MapStyleReader
from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle

NODES = VirtualNodes(count=4, global_batch_size=8)
ORDER = SampleOrder(
    seed=1,
    partitions=Partitions([800]),
    global_batch_size=8,
    num_lanes=1,
    window_size=8,
    is_shuffled=False,
)
ONE = NODES.micro_batches(0)  # micro-batches of a worker that has one virtual node of four
ALL = NODES.computed_by(0, 1)
WORKER = os.getpid()


def part(iteration: int) -> Part:
    """The part of ONE."""
    return ORDER.parts(ONE, iteration)[0]


class Reading:
    def __init__(self, read: Callable[[Part], Any]) -> None:
        self._read = read

    def __call__(self, part: Part) -> Any:
        return self._read(part)

    def process_key(self, part: Part) -> int:
        return part.iteration + part.virtual_node


@pytest.fixture
def reading() -> Iterator[Callable[..., ReadAhead]]:
    made: list[ReadAhead] = []

    def make(
        read: Callable[[Part], Any],
        num_processes: int = 1,
        cpu_throttle: CpuThrottle | None = None,
        begin_reading: Callable[[int], None] | None = None,
    ) -> ReadAhead:
        ahead = ReadAhead(
            Reading(read),
            ORDER,
            num_processes=num_processes,
            device=torch.device("cpu"),
            cpu_throttle=cpu_throttle or CpuThrottle(1.0),
            begin_reading=begin_reading,
        )
        made.append(ahead)
        return ahead

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("num_processes", [0, 1, 3, 9])
def test_batches_come_in_order_for_any_number_of_processes(reading, num_processes):
    ahead = reading(lambda part: part.samples, num_processes)
    for iteration in range(5):
        first = 8 * iteration
        assert ahead.take(ALL, iteration) == [(i, i + 1) for i in range(first, first + 8, 2)]


@pytest.mark.parametrize("num_processes", [0, 2])
def test_each_process_that_reads_begins_once(reading, num_processes):
    """Also the worker, when its processes have died."""
    begun: list[int] = []
    draws: list[float] = []

    def begin(number: int) -> None:
        begun.append(number)
        torch.manual_seed(number)

    ahead = reading(lambda _: (os.getpid() == WORKER, list(begun)), num_processes, begin_reading=begin)
    for iteration in range(4):
        for in_worker, numbers in ahead.take(ALL, iteration):
            assert numbers in ([[0]] if in_worker else [[0], [1]])
            assert in_worker == (num_processes == 0 or iteration >= 2)
        draws.append(torch.rand(1).item())
        if iteration == 1:
            ahead.close()
    assert begun == [0]
    assert len(set(draws)) == 4, "its generators stay"


class Batch(NamedTuple):
    points: torch.Tensor
    more: Any


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


def test_any_batch_arrives_unchanged(reading):
    here = anything(part(0))
    (there,) = reading(anything).take(ONE, 0)
    assert there["same"][0] is there["same"][1]
    assert type(there["named"]) is Batch
    assert there["else"] == here["else"]
    assert there["named"].more.tolist() == [0, 1, 2]
    pairs = [(here[name], there[name]) for name in here if isinstance(here[name], torch.Tensor)]
    pairs += [(here["same"][0], there["same"][0]), (here["named"].points, there["named"].points)]
    for mine, theirs in pairs:
        assert mine.dtype == theirs.dtype
        assert mine.requires_grad == theirs.requires_grad
        assert mine.layout == theirs.layout
        if mine.layout is torch.strided:
            assert mine.stride() == theirs.stride()
        assert torch.equal(mine.to_dense(), theirs.to_dense())


class Noisy:
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(1) + np.random.rand() + index


def test_random_numbers_of_reading_are_equal_in_all_processes_and_do_not_disturb_training(reading):
    read = MapStyleReader(Noisy(), torch.cat, ORDER)
    here = [read(part(i)) for i in range(4)]
    torch.manual_seed(1)
    undisturbed = [torch.rand(1000) for _ in range(4)]
    ahead = reading(read)
    torch.manual_seed(1)
    for i in range(4):
        assert torch.equal(ahead.take(ONE, i)[0], here[i])
        assert torch.equal(torch.rand(1000), undisturbed[i])


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


@pytest.mark.parametrize("read", [dies, raises, cannot_be_sent])
def test_the_worker_reads_if_its_process_fails(reading, read):
    ahead = reading(read)
    for iteration in range(3):
        assert ahead.take(ONE, iteration) == ["read here"]


def test_an_error_of_the_data_set_is_raised_unchanged_when_its_batch_is_due(reading):
    def read(part: Part) -> int:
        if part.iteration == 1:
            raise KeyError("no such sample")
        return part.iteration

    ahead = reading(read)
    assert ahead.take(ONE, 0) == [0]
    with pytest.raises(KeyError, match="no such sample"):
        ahead.take(ONE, 1)


def reads_of(part: Part, times: dict[tuple[int, int], int] = {}) -> Any:  # noqa: B006 - of the process that reads
    """Which part it is, and how often this process has read it."""
    which = (part.iteration, part.virtual_node)
    times[which] = times.get(which, 0) + 1
    return which, times[which], os.getpid() != WORKER


def test_batches_of_the_next_generation_are_ready_at_or_after_the_switch(reading):
    """It has other virtual nodes, and may start a step later than expected."""
    before, after = NODES.computed_by(0, 2), NODES.computed_by(2, 3)
    ahead = reading(reads_of)
    ahead.take(before, 5)
    ahead.take(before, 6, next_micro_batches=after)
    ahead.take(before, 7, next_micro_batches=after)
    taken = ahead.take(after, 8)
    assert taken == [((8, 2), 1, True), ((8, 3), 1, True)]
    assert ahead.take(after, 9) == [((9, 2), 1, True), ((9, 3), 1, True)]


def test_a_joining_worker_reads_ahead_also_if_it_joins_at_another_step(reading):
    ahead = reading(reads_of)
    ahead.prepare(ALL, 7)
    assert ahead.take(ALL, 8) == [((8, v), 1, True) for v in range(4)]
    assert ahead.take(ALL, 30) == [((30, v), 1, True) for v in range(4)]


def test_a_repeated_step_reads_its_batches_again(reading):
    """Training may have changed them in place."""
    ahead = reading(reads_of)
    assert ahead.take(ONE, 3) == [((3, 0), 1, True)]
    assert ahead.take(ONE, 3) == [((3, 0), 2, True)]
    assert ahead.take(ONE, 4) == [((4, 0), 1, True)]


def test_cpu_time_of_the_process_is_charged(reading):
    charged: list[float] = []

    class Charged(CpuThrottle):
        def charge(self, cpu_s: float) -> None:
            charged.append(cpu_s)

    reading(lambda _: sum(float(i) for i in range(100_000)), cpu_throttle=Charged(1.0)).take(ONE, 0)
    assert len(charged) == 1
    assert charged[0] > 0
