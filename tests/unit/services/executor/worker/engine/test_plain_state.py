"""Plain state of user code: what is part of it, and that a written state is the one that was read."""

import array
import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from types import FrameType, SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from elasticflow.services.executor.worker.engine import plain_state, plain_values
from elasticflow.services.executor.worker.engine.additional_state import AdditionalState
from elasticflow.services.executor.worker.engine.plain_state import LoopState, Namespace, PlainState, plain_state_of
from elasticflow.services.executor.worker.group.compatibility_digest import decode_value, encode_value

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3).map(OrderedDict)
        | st.dictionaries(st.text(max_size=2), st.integers(), max_size=3).map(Counter)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3).map(lambda items: defaultdict(list, items))
        | st.frozensets(st.integers(), max_size=3)
        | st.binary(max_size=3)
        | st.binary(max_size=3).map(bytearray)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(deque)
        | st.sets(st.integers(), max_size=3)
    ),
    max_leaves=6,
)
variables = st.dictionaries(st.sampled_from(["a", "b", "c"]), values)
counted = {"steps": 0}


class Meter:
    def __init__(self) -> None:
        self.value = 0.0


class Job:
    steps = 0

    def __init__(self) -> None:
        self.iteration = 7
        self.count, self.meter, self.tensor, self.generator = 1, Meter(), torch.ones(2), torch.Generator()
        self.history: list[float] = []


def of(values: dict[str, Any]) -> PlainState:
    return PlainState(lambda: [Namespace("", values, may_delete=True)])


@given(variables, variables)
def test_a_state_comes_back_whatever_a_call_has_changed(before: dict[str, Any], after: dict[str, Any]) -> None:
    there = dict(before)
    state = of(there).read()
    expected = copy.deepcopy(there)
    there.clear()
    there.update(after)
    of(there).write(state, deletes=True)
    assert of(there).read() == state
    assert there == expected


def test_attributes_of_the_job_and_its_objects_its_class_and_variables_of_its_module() -> None:
    job = Job()
    state = plain_state_of(job, ())
    before = state.read()
    job.count, job.meter.value, Job.steps = 2, 0.5, 3
    counted["steps"] += 1
    job.history.append(1.0)
    history = job.history
    assert {name for name, plain in state.read().items() if plain != before[name]} == {
        "count",
        "meter",
        "Job.steps",
        f"{__name__}:counted",
        "history",
    }
    state.write(before, deletes=True)
    assert (job.count, job.meter.value, Job.steps, counted, job.history) == (1, 0.0, 0, {"steps": 0}, [])
    assert job.history is history, "others may refer to it"
    assert not {"iteration", "tensor", "generator"} & before.keys()


def test_what_a_call_adds_is_not_there_in_the_next_one_unless_it_is_not_plain() -> None:
    there: dict[str, Any] = {"hidden": None}
    state = of(there)
    before = state.read()
    there.update(hidden=torch.ones(2), seen=1, made=torch.ones(2))
    state.write(before, deletes=True)
    assert there.keys() == {"hidden", "made"}
    assert there["hidden"] is not None, "the repeated first step finds it"


def test_a_bounded_queue_stays_bounded_where_it_is_made_anew() -> None:
    joining: dict[str, Any] = {}
    of(joining).write(of({"recent": deque([1, 2], maxlen=2)}).read())
    joining["recent"].append(3)
    assert list(joining["recent"]) == [2, 3]


def test_large_containers_are_data_and_one_that_has_grown_is_named_once() -> None:
    there = {"few": [0] * plain_values.MOST_ITEMS, "many": [0] * (plain_values.MOST_ITEMS + 1)}
    optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)
    additional = AdditionalState({}, optimizer, of(there))
    assert (additional.changed_plain(), additional.outgrown()) == ({}, [])
    there["few"].append(0)
    assert (additional.changed_plain(), additional.outgrown(), additional.outgrown()) == ({}, ["few"], [])


def test_objects_with_a_state_of_their_own_are_left_out() -> None:
    meter = Meter()
    assert not PlainState(lambda: [Namespace("", {"meter": meter})], known=[meter]).read()


def loop() -> Iterator[Any]:
    step = 0
    best = SimpleNamespace(loss=1.0)
    while True:
        step += 1
        yield step, best


@pytest.mark.parametrize("changed", [10, 0])
def test_variables_of_a_function_that_runs(changed: int) -> None:
    running = loop()
    assert next(running)[0] == 1
    frame: FrameType = running.gi_frame  # type: ignore[attr-defined]
    state = PlainState(lambda: plain_state.namespaces_of_frames([frame]))
    before = state.read()
    assert before[f"{__name__}:loop.step"] == 1
    state.write({**before, f"{__name__}:loop.step": changed})
    assert next(running)[0] == changed + 1


def test_all_passes_of_a_step_begin_alike_and_a_joining_worker_as_its_peers() -> None:
    there = {"step": 0, "running": 0.0}
    state = LoopState(lambda: [Namespace("", there)])
    for _ in range(3):  # passes, of which the last two repeat the step
        state.begin_pass(0)
        there["step"] += 1
    assert there["step"] == 1
    there["running"] = 0.0  # a new epoch begins
    state.begin_pass(1)
    there["step"] += 1
    there["running"] += 0.5
    state.begin_pass(1)
    assert there == {"step": 1, "running": 0.0}
    state.join({"step": 7, "running": 2.5})
    there["running"] = 0.0  # the joining process begins the epoch
    state.begin_pass(2)
    assert there == {"step": 7, "running": 2.5}


# --- values of users that are easily written over --------------------------------------------------------


class Named(dict[str, float]):
    """Its items are no state: another process could not make it."""


class Phase(Enum):
    WARM_UP = 1
    MAIN = 2


@dataclass(frozen=True)
class Settings:
    rate: float


class Warm:
    def __init__(self) -> None:
        self.factor = 0.1


class Usual(Warm):
    pass


DEFAULT = Settings(1.0)


class Logger:
    def __init__(self, job: Any) -> None:
        self.job = job


class Varied:
    def __init__(self) -> None:
        self.count, self.losses, self.phase, self.settings, self.mode = 0, [1.0], Phase.WARM_UP, DEFAULT, Warm()
        self.named, self.logger = Named(rate=0.1), Logger(self)
        self.functions = [{"function": len, "count": 0}]
        self.pairs = np.zeros(2, dtype=[("a", "f4"), ("b", "i4")])
        self.data = bytes(plain_values.MOST_BYTES + 1)
        self.numbers, self.recent = array.array("i", [1]), deque([1, 2, 3])
        self.counts = self.view = np.zeros(2)


def additional_state_of(job: Varied) -> AdditionalState:
    return AdditionalState({}, torch.optim.SGD([torch.ones(1)], lr=0.1), plain_state_of(job, ()))


def test_a_call_is_undone_and_what_is_no_state_stays() -> None:
    job = Varied()
    additional = additional_state_of(job)
    before = additional.snapshot()
    job.count, job.phase, job.mode = 1, Phase.MAIN, Usual()
    job.losses.append(2.0)
    job.counts += 1
    additional.restore(before)
    assert (job.count, job.losses, job.phase, type(job.mode)) == (0, [1.0], Phase.WARM_UP, Warm)
    assert (job.named, job.logger.job, job.functions[0]["function"]) == ({"rate": 0.1}, job, len)
    assert job.view is job.counts
    assert not job.counts.any()


def test_a_joining_process_gets_values_of_their_own_classes_and_shares_none() -> None:
    job, joining = Varied(), Varied()
    additional, receiver = additional_state_of(job), additional_state_of(joining)
    job.phase, job.mode, job.settings = Phase.MAIN, Usual(), Settings(0.5)
    job.numbers, job.recent = array.array("d", [0.5]), deque([1, 2, 3], maxlen=3)
    job.functions[0]["count"] = 5
    job.counts += 1
    receiver.set_plain(decode_value(encode_value(additional.changed_plain())))
    assert (joining.phase, Phase.WARM_UP.value, type(joining.mode)) == (Phase.MAIN, 1, Usual)
    assert (joining.settings, DEFAULT) == (Settings(0.5), Settings(1.0))
    assert (joining.numbers.typecode, joining.recent.maxlen) == ("d", 3)
    assert joining.functions[0]["function"] is len
    assert joining.view is joining.counts
    assert joining.counts.tolist() == [1.0, 1.0]
    assert joining.logger.job is joining


def test_weights_that_a_dict_holds_are_no_empty_dict_elsewhere() -> None:
    there: dict[str, Any] = {"best": None}
    state = of(there)
    state.mark()
    there["best"] = {"weight": torch.ones(2)}
    assert "best" not in state.read()


def test_a_list_of_tensors_that_is_emptied_stays_there() -> None:
    """It was no plain value when the step began: it is none that the step has added."""
    values: dict[str, Any] = {"outputs": [torch.ones(1)]}
    state = of(values)
    before = state.mark()
    values["outputs"].clear()
    values["added"] = 1
    state.write(before, deletes=True)
    assert values == {"outputs": []}


def test_a_variable_that_a_pass_has_made_is_not_there_in_the_next_pass_of_its_step() -> None:
    values: dict[str, Any] = {"steps": 0}
    state = LoopState(lambda: [Namespace("", values, may_delete=True)])
    assert state.begin_pass(3) == "new"
    values |= {"steps": 1, "seen": True}
    assert state.begin_pass(3) == "repeated"
    assert values == {"steps": 0}
