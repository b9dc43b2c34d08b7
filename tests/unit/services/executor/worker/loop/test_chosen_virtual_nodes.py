"""The choice of the number of virtual nodes, by steps on a clock that only the steps move."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes, chosen_count, counts_to_choose_from
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.loop import speed_measurement
from elasticflow.services.executor.worker.process.device import DeviceMemoryExceeded
from elasticflow.shared.messages.measurements import VirtualNodeCount

BATCH = 4096
SAMPLE_S = 1e-4
NEVER_S = 1e9


@dataclass
class Steps:
    """A trainer of which each step takes step_s(number of virtual nodes, number of the step). most_samples: of a pass
    that fits the memory. fewest_samples: of one that the user's code can compute."""

    step_s: Callable[[int, int], float]
    most_samples: int = BATCH
    fewest_samples: int = 1
    global_batch_size: int = BATCH
    virtual_nodes: int = 0  # in the code
    now_s: float = 0.0
    num_steps: int = 0
    counts: list[int] = field(default_factory=list[int])
    is_over: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rolled_back: int = 0

    def __post_init__(self) -> None:
        self.function = SimpleNamespace(virtual_nodes=self.virtual_nodes)
        count = self.virtual_nodes or min(8, self.global_batch_size)
        self.begin_again(GenerationMembers(None, VirtualNodes(count=count, global_batch_size=self.global_batch_size)))

    def begin_again(self, members: GenerationMembers) -> None:
        self.members = members

    def step(self, *, stop: bool) -> None:
        assert not stop
        self.num_steps += 1
        count, samples = self.members.virtual_nodes.count, self.members.virtual_nodes.largest_micro_batch
        self.counts.append(count)
        if samples > self.most_samples:
            raise DeviceMemoryExceeded(samples, "out of memory")
        if samples < self.fewest_samples:
            raise ValueError("expected more than 1 value per channel")
        self.now_s += self.step_s(count, self.num_steps)

    def settle(self) -> None:
        pass

    def roll_back(self) -> bool:
        self.rolled_back += 1
        return True


def chosen(
    monkeypatch: pytest.MonkeyPatch, trainer: Any, *, most: int = 64, until_s: float = NEVER_S, stop: bool = False
) -> VirtualNodeCount:
    monkeypatch.setattr(speed_measurement, "time", SimpleNamespace(monotonic=lambda: trainer.now_s))
    channel: Any = SimpleNamespace(stop_requested=stop)
    found = speed_measurement.choose_virtual_nodes(trainer, channel, most, until_s)
    assert trainer.members.virtual_nodes.count == found.count, "the speed is measured with it"
    return found


def pass_costs(pass_s: float) -> Callable[[int, int], float]:
    """Each pass costs so much more than its samples."""
    return lambda count, _: BATCH * SAMPLE_S + count * pass_s


@pytest.mark.parametrize(
    ("pass_s", "most", "count"),
    [
        (0.0, 64, 64),
        (0.0, 16, 16),
        (0.0, 100, 64),
        (BATCH * SAMPLE_S * 0.03 / 40, 64, 32),
        (BATCH * SAMPLE_S * 0.03 / 8, 64, 8),
        (BATCH * SAMPLE_S * 0.1, 64, 1),
        (BATCH * SAMPLE_S * 10, 64, 1),
    ],
)
def test_the_most_virtual_nodes_that_cost_three_percent_are_chosen(
    monkeypatch: pytest.MonkeyPatch, pass_s: float, most: int, count: int
) -> None:
    found = chosen(monkeypatch, Steps(pass_costs(pass_s)), most=most)
    assert (found.count, found.source) == (count, "measured")
    assert found.step_s_by_count[count] == pytest.approx(BATCH * SAMPLE_S + count * pass_s)


def test_what_slows_the_machine_for_a_while_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of five rounds are slow by a third; the first number is measured before it begins."""
    steps_a_round = 7 * 3

    def step_s(count: int, number: int) -> float:
        return 0.05 * (4 / 3 if steps_a_round + 3 < number <= 3 * steps_a_round else 1.0)

    assert chosen(monkeypatch, Steps(step_s)).count == 64


def test_numbers_whose_parts_exceed_the_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Steps(pass_costs(0.1), most_samples=BATCH // 4)
    found = chosen(monkeypatch, trainer)
    assert (found.count, min(found.step_s_by_count)) == (4, 4)
    assert trainer.rolled_back == 2
    assert trainer.counts.count(1) == 1, "it is not tried again"


def test_numbers_whose_parts_are_too_small_for_the_code_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, Steps(pass_costs(0.0), fewest_samples=BATCH // 16))
    assert (found.count, max(found.step_s_by_count)) == (16, 16)


def test_a_number_that_is_hopeless_is_measured_in_one_round_or_two(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Steps(pass_costs(BATCH * SAMPLE_S))
    assert chosen(monkeypatch, trainer).count == 1
    assert [trainer.counts.count(count) for count in (1, 2, 4, 8, 16, 32, 64)] == [6, 6, 6, 3, 3, 3, 3]


def test_one_delay_takes_no_number_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps with 64 in the first round take three times as long."""
    found = chosen(monkeypatch, Steps(lambda count, number: 0.12 if count == 64 and number <= 21 else 0.04))
    assert found.count == 64


@pytest.mark.parametrize(
    "changes",
    [{"until_s": 10.0}, {"stop": True}],
    ids=["there is no time", "the worker is stopped"],
)
def test_the_default_stays_without_a_whole_measurement(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    found = chosen(monkeypatch, Steps(pass_costs(0.0)), **changes)
    assert found == VirtualNodeCount(count=8, source="default")


@pytest.mark.parametrize(("step_s", "num_rounds"), [(0.01, 5), (0.13, 4), (2.0, 2)])
def test_rounds_end_after_ten_seconds_but_not_before_two(
    monkeypatch: pytest.MonkeyPatch, step_s: float, num_rounds: int
) -> None:
    """A round has three steps with each of seven numbers."""
    trainer = Steps(lambda count, _: step_s)
    assert chosen(monkeypatch, trainer).source == "measured"
    assert trainer.counts.count(16) == num_rounds * 3


def test_two_rounds_suffice_where_steps_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    two_rounds_s = 2 * 7 * 3 * BATCH * SAMPLE_S
    assert chosen(monkeypatch, Steps(pass_costs(0.0)), until_s=two_rounds_s - 2.0).source == "default"
    assert chosen(monkeypatch, Steps(pass_costs(0.0)), until_s=two_rounds_s + 0.1).count == 64


def test_the_default_stays_if_the_job_ends_before(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Steps(pass_costs(0.0), is_over=True)
    assert chosen(monkeypatch, trainer) == VirtualNodeCount(count=8, source="default")


def test_the_default_stays_if_the_code_computes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Steps(pass_costs(0.0), fewest_samples=BATCH + 1)
    assert chosen(monkeypatch, trainer) == VirtualNodeCount(count=8, source="default")


def test_the_code_decides_without_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Steps(pass_costs(0.0), virtual_nodes=6)
    assert chosen(monkeypatch, trainer) == VirtualNodeCount(count=6, source="code")
    assert not trainer.num_steps


@pytest.mark.parametrize(
    ("continues", "planned", "reproducible", "told"),
    [("han", 4, "bitwise", 4), ("han", 0, "bitwise", None), (None, 4, "bitwise", None), ("han", 4, "fast", None)],
)
def test_a_run_with_those_of_the_job_that_it_continues_tells_them(
    continues: str | None, planned: int, reproducible: str, told: int | None
) -> None:
    """Whether or not it measures others: its speeds are those of this number."""
    trainer: Any = Steps(pass_costs(0.0), virtual_nodes=planned)
    trainer.function.reproducible = reproducible
    trainer.assignment = SimpleNamespace(
        spec=SimpleNamespace(continues=continues), plan=SimpleNamespace(num_virtual_nodes=planned)
    )
    found = speed_measurement.virtual_nodes_of_continued(trainer)
    assert (None if found is None else found.count) == told


def test_counts_to_choose_from_are_powers_of_two_up_to_the_batch() -> None:
    assert counts_to_choose_from(BATCH, 64) == (1, 2, 4, 8, 16, 32, 64)
    assert counts_to_choose_from(BATCH, 63) == (1, 2, 4, 8, 16, 32)
    assert counts_to_choose_from(5, 64) == (1, 2, 4)
    assert counts_to_choose_from(1, 64) == (1,)


def test_a_cheaper_number_among_more_virtual_nodes_does_not_hide_them() -> None:
    assert chosen_count({1: 1.0, 2: 1.04, 4: 1.02, 8: 1.2}) == 4
    assert chosen_count({4: 1.0}) == 4


@given(st.dictionaries(st.integers(0, 6).map(lambda exponent: 1 << exponent), st.floats(1e-6, 1e3), min_size=1))
def test_the_choice_costs_three_percent_at_most_and_no_larger_number_does(step_s: dict[int, float]) -> None:
    count, best_s = chosen_count(step_s), min(step_s.values())
    assert step_s[count] <= 1.03 * best_s
    assert all(each > 1.03 * best_s for larger, each in step_s.items() if larger > count)


def test_with_sixteen_virtual_nodes_each_of_sixteen_workers_has_one() -> None:
    cut = VirtualNodes(count=16, global_batch_size=8192)
    blocks = [cut.block(rank, 16) for rank in range(16)]
    assert [len(block) for block in blocks] == [1] * 16
    assert [node for block in blocks for node in block] == list(range(16))
