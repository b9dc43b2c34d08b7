"""What train() changes beside the optimizer's step changes once in a step, or the job fails in its first one."""

import array
import copy
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.additional_state import AdditionalState
from elasticflow.services.executor.worker.engine.bitwise_steps import BitwiseSteps
from elasticflow.services.executor.worker.engine.gradients_and_buffers import CarriedGradients
from elasticflow.services.executor.worker.engine.plain_state import plain_state_of
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.undeclared_state import UndeclaredState
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import LockstepScheduler
from elasticflow.services.executor.worker.group.compatibility_digest import decode_value, encode_value
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch

NUM_STEPS = 3


class Student(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Linear(2, 1, bias=False)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.online(x)


class Job:
    """change: what train() does beside a usual step."""

    def __init__(self, **change: Callable[["Job"], Any]) -> None:
        torch.manual_seed(0)
        self.model = Student()
        self.optimizer = torch.optim.SGD(self.model.online.parameters(), lr=0.1)
        self.seen: list[float] = []
        self.temperature = 1.0
        self._change = change

    def at(self, where: str) -> None:
        if where in self._change:
            self._change[where](self)

    def train(self, inputs: torch.Tensor) -> None:
        self.at("first")
        self.optimizer.zero_grad()
        loss = self.model(inputs).square().mean() * self.temperature
        self.at("loss")
        loss.backward()
        self.at("backward")
        self.optimizer.step()
        self.at("step")
        self.seen.append(float(self.model.target.weight.detach().sum()))


@pytest.fixture
def run() -> Iterator[Callable[..., Job]]:
    """Some steps of a job with this many virtual nodes on one worker, which all have the same inputs."""
    engines: list[BitwiseSteps] = []

    def run(job: Job, count: int = 4, num_steps: int = NUM_STEPS, additional: AdditionalState | None = None) -> Job:
        engine = BitwiseSteps(
            job.model,
            job.optimizer,
            carried=CarriedGradients(job.model, job.optimizer),
            members=GenerationMembers(None, VirtualNodes(count=count, global_batch_size=4)),
            job_seed=0,
            cpu_throttle=CpuThrottle(1.0),
            stopwatch=Stopwatch(torch.device("cpu")),
            make_scheduler=partial(LockstepScheduler, on_start=lambda: None),
            additional=additional,
        )
        engines.append(engine)
        for iteration in range(num_steps):
            engine.run(iteration, [partial(job.train, torch.ones(1, 2))] * count)
            if engine.step_digest.differs:
                raise TrainingFailed("gradients differ")
        return job

    yield run
    for engine in reversed(engines):
        engine.close()


def lerp(job: Job) -> None:
    with torch.no_grad():
        job.model.target.weight.lerp_(job.model.online.weight, 0.1)


def lerp_data(job: Job) -> None:
    job.model.target.weight.data.mul_(0.9).add_(job.model.online.weight.data, alpha=0.1)


def replace_data(job: Job) -> None:
    job.model.target.weight.data = job.model.target.weight.data * 0.9 + job.model.online.weight.data * 0.1


def foreach(job: Job) -> None:
    torch._foreach_lerp_([job.model.target.weight.data], [job.model.online.weight.data], 0.1)


def decay(job: Job) -> None:
    job.model.online.weight.data.mul_(0.5)


@pytest.mark.parametrize("change", [lerp, lerp_data, replace_data, foreach, decay])
def test_a_change_behind_the_optimizers_step_happens_once_in_a_step(
    run: Callable[..., Job], change: Callable[[Job], None]
) -> None:
    alone, divided = run(Job(step=change), 1), run(Job(step=change), 4)
    for name, value in alone.model.state_dict().items():
        assert torch.equal(divided.model.state_dict()[name], value), name
    assert divided.seen == [seen for seen in alone.seen for _ in range(4)], "all calls see the same values"


@pytest.mark.parametrize("where", ["first", "loss", "backward"])
@pytest.mark.parametrize("change", [lerp, lerp_data, replace_data, decay])
@pytest.mark.parametrize("count", [1, 4])
def test_a_change_before_the_optimizers_step_is_refused_in_the_first_step(
    run: Callable[..., Job], where: str, change: Callable[[Job], None], count: int
) -> None:
    with pytest.raises(TrainingFailed, match=r"train\(\) changed the parameter \w+\.weight before optimizer.step\(\)"):
        run(Job(**{where: change}), count, 1)


def test_a_step_without_an_optimizer_is_refused(run: Callable[..., Job]) -> None:
    def descend(job: Job) -> None:
        with torch.no_grad():
            job.model.online.weight -= 0.1 * job.model.online.weight.grad

    with pytest.raises(TrainingFailed, match=r"changed the parameter online\.weight"):
        run(Job(backward=descend), 2, 1)


def test_a_later_change_that_torch_counts_is_refused_in_its_step(run: Callable[..., Job]) -> None:
    def change_late(job: Job) -> None:
        if len(job.seen) >= 4:
            lerp(job)

    with pytest.raises(TrainingFailed, match="in iteration 1"):
        run(Job(backward=change_late))


# --- gradients ---


def assign_own_gradient(job: Job) -> None:
    loss = (job.model(torch.ones(1, 2)) * len(job.seen)).mean() + torch.rand(())
    loss = loss + job.model.online.weight.square().sum() * torch.rand(())
    (job.model.online.weight.grad,) = torch.autograd.grad(loss, [job.model.online.weight])


def test_gradients_that_calls_assign_by_themselves_are_found(run: Callable[..., Job]) -> None:
    parts = iter(range(100))

    def assign(job: Job) -> None:
        loss = job.model(torch.full((1, 2), float(next(parts)))).mean()
        (job.model.online.weight.grad,) = torch.autograd.grad(loss, [job.model.online.weight])

    with pytest.raises(TrainingFailed, match="gradients differ"):
        run(Job(backward=assign))


def test_gradients_that_calls_change_alike_are_equal(run: Callable[..., Job]) -> None:
    def clip(job: Job) -> None:
        nn.utils.clip_grad_norm_(job.model.parameters(), 0.01)

    def double(job: Job) -> None:
        job.model.online.weight.grad = job.model.online.weight.grad * 2

    for change in (clip, double):
        assert torch.equal(
            run(Job(backward=change)).model.online.weight, run(Job(backward=change), 1).model.online.weight
        )


def test_an_optimizers_step_without_a_backward_pass_is_refused(run: Callable[..., Job]) -> None:
    job = Job()

    def train(_: torch.Tensor) -> None:
        assign_own_gradient(job)
        job.optimizer.step()

    job.train = train  # type: ignore[method-assign]
    with pytest.raises(TrainingFailed, match=r"optimizer.step\(\) without backward\(\)"):
        run(job, 2, 1)


@pytest.mark.parametrize("count", [1, 4])
def test_passes_before_a_step_add_up(run: Callable[..., Job], count: int) -> None:
    def again(job: Job) -> None:
        (job.model(torch.ones(1, 2)).mean() * 3).backward()

    job = Job(backward=again)
    before = job.model.online.weight.detach().clone()
    run(job, count, 1)
    output = before.sum()
    torch.testing.assert_close(job.model.online.weight, before - 0.1 * (2 * output + 3) * torch.ones(1, 2))


class Unclipped:
    """Gradients of the second layer are never cleared: no optimizer has it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
        self.optimizer = torch.optim.SGD(self.model[0].parameters(), lr=0.1)

    def train(self, inputs: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(inputs).mean().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()


@pytest.mark.parametrize("count", [1, 4])
def test_gradients_that_nobody_clears_add_up(run: Callable[..., Any], count: int) -> None:
    job, plain = run(Unclipped(), count), Unclipped()
    for _ in range(NUM_STEPS):
        plain.train(torch.ones(1, 2))
    torch.testing.assert_close(job.model[0].weight, plain.model[0].weight)
    torch.testing.assert_close(job.model[1].weight.grad, plain.model[1].weight.grad)


def carried_after(
    num_steps: int, *, clears: bool, steps_every: int = 1, sees_backward: bool = True
) -> CarriedGradients:
    model = nn.Linear(2, 1)
    nn.init.ones_(model.weight)
    carried = CarriedGradients(model, torch.optim.SGD([model.weight], lr=0.1), sees_backward=sees_backward)
    take_steps(carried, num_steps, clears=clears, steps_every=steps_every)
    return carried


def take_steps(carried: CarriedGradients, num_steps: int, *, clears: bool, steps_every: int) -> None:
    model, optimizer = carried._model, carried._optimizer
    for iteration in range(num_steps):
        carried.begin_step()
        if clears:
            model.zero_grad()
        if carried._sees_backward:
            carried.note_backward(list(model.parameters()), [parameter.grad for parameter in model.parameters()])
        model(torch.ones(1, 2)).mean().backward()
        if iteration % steps_every == steps_every - 1:
            optimizer.step()


def assert_same(state: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    assert state | {"tensors": {}} == other | {"tensors": {}}
    torch.testing.assert_close(state["tensors"], other["tensors"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("num_steps", "clears", "steps_every", "positions"),
    [
        (1, True, 1, [0, 1]),  # no step has shown it
        (2, True, 1, []),
        (2, False, 1, [0, 1]),
        (3, True, 4, [0, 1]),  # the optimizer has not stepped with them
    ],
)
def test_gradients_are_state_if_a_later_pass_adds_to_them(
    num_steps: int, clears: bool, steps_every: int, positions: list[int]
) -> None:
    carried = carried_after(num_steps, clears=clears, steps_every=steps_every)
    assert list(carried.state()["tensors"]) == positions


def test_a_failed_step_gives_back_the_gradients_that_it_began_with() -> None:
    carried = carried_after(2, clears=False)
    before = copy.deepcopy(carried.state())
    carried.begin_step()
    for parameter in carried._parameters:
        parameter.grad.zero_()
    carried.note_backward([], [])
    carried.roll_back()
    assert_same(carried.state(), before)


@pytest.mark.parametrize("sees_backward", [True, False])
@pytest.mark.parametrize(("clears", "steps_every"), [(True, 1), (False, 1), (True, 4)])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
def test_a_worker_that_loads_gradients_has_the_same_state_as_its_source(
    num_steps: int, clears: bool, steps_every: int, sees_backward: bool
) -> None:
    """Both may be sources in the next transfer, at the same step boundary or after the next step."""
    source = carried_after(num_steps, clears=clears, steps_every=steps_every, sees_backward=sees_backward)
    receiver = carried_after(0, clears=clears, sees_backward=sees_backward)
    receiver.load(copy.deepcopy(source.state()))
    assert_same(receiver.state(), source.state())
    for each in (source, receiver):
        take_steps(each, 1, clears=clears, steps_every=1)
    assert_same(receiver.state(), source.state())


# --- numbers, and modules that are no state ---


def test_a_number_of_the_job_changes_once_in_a_step(run: Callable[..., Job]) -> None:
    def cool(job: Job) -> None:
        job.temperature *= 0.5

    job = Job(step=cool)
    additional = AdditionalState({}, job.optimizer, plain_state_of(job, ()))
    run(job, 4, additional=additional)
    assert additional.changed_plain()["temperature"] == 0.5**NUM_STEPS
    assert len(job.seen) == NUM_STEPS, "lists of numbers, too"


class Slots:
    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0


def count_in(name: str) -> Callable[[Job], None]:
    """One more in the attribute, or in the item or attribute "steps" of it."""

    def count(job: Job) -> None:
        value = getattr(job, name)
        if isinstance(value, np.ndarray):
            value[(0,) * value.ndim] += 1
        elif isinstance(value, dict | list | bytearray | array.array):
            value["steps" if isinstance(value, dict) else 0] += 1
        elif hasattr(value, "steps"):
            value.steps += 1
        else:
            setattr(job, name, value + 1)

    return count


@pytest.mark.parametrize(
    ("make", "ended"),
    [
        pytest.param(lambda: Counter(steps=0), Counter(steps=NUM_STEPS), id="Counter"),
        pytest.param(lambda: defaultdict(int), {"steps": NUM_STEPS}, id="defaultdict"),
        pytest.param(lambda: OrderedDict(steps=0), OrderedDict(steps=NUM_STEPS), id="OrderedDict"),
        pytest.param(lambda: SimpleNamespace(steps=0), SimpleNamespace(steps=NUM_STEPS), id="SimpleNamespace"),
        pytest.param(Slots, NUM_STEPS, id="slots"),
        pytest.param(lambda: bytearray(1), bytearray([NUM_STEPS]), id="bytearray"),
        pytest.param(lambda: array.array("q", [0]), array.array("q", [NUM_STEPS]), id="array"),
        pytest.param(lambda: np.float32(0), np.float32(NUM_STEPS), id="numpy scalar"),
        pytest.param(lambda: np.zeros(2), np.array([NUM_STEPS, 0.0]), id="numpy array"),
        pytest.param(lambda: np.array(0), np.array(NUM_STEPS), id="numpy array without axes"),
        pytest.param(lambda: 0j, complex(NUM_STEPS), id="complex"),
    ],
)
def test_plain_values_of_all_kinds_change_once_in_a_step(
    run: Callable[..., Job], make: Callable[[], Any], ended: Any
) -> None:
    for count in (1, 4):
        job = Job(step=count_in("mine"))
        job.mine = made = make()
        additional = AdditionalState({}, job.optimizer, plain_state_of(job, ()))
        run(job, count, additional=additional)
        value = job.mine.steps if isinstance(made, Slots) else job.mine
        assert bool(np.all(np.asarray(value == ended)))
        sent = decode_value(encode_value(additional.changed_plain()))
        joining = Job()
        joining.mine = make()
        AdditionalState({}, joining.optimizer, plain_state_of(joining, ())).set_plain(sent)
        received = joining.mine.steps if isinstance(made, Slots) else joining.mine
        assert bool(np.all(np.asarray(received == value)))


def test_what_depends_on_the_part_of_the_batch_is_named_once(run: Callable[..., Job]) -> None:
    calls = iter(range(1000))

    def note(job: Job) -> None:
        job.last, job.temperature, job.best = next(calls), 2.0, float("nan")

    job = Job(step=note)
    additional = AdditionalState({}, job.optimizer, plain_state_of(job, ()))
    run(job, 4, additional=additional)
    assert additional.newly_differing() == ["last"]
    run(job, 4, additional=additional)
    assert additional.newly_differing() == []
    alone = Job(step=note)
    additional = AdditionalState({}, alone.optimizer, plain_state_of(alone, ()))
    run(alone, 1, additional=additional)
    assert additional.newly_differing() == []


def test_a_name_gets_its_object_back_and_the_data_that_it_had_meanwhile_is_not_written(
    run: Callable[..., Job],
) -> None:
    data = [[float(index)] for index in range(20_000)]  # too many to be state
    arrays = [np.full(1, index) for index in range(20_000)]

    def look(job: Job) -> None:
        job.sample, job.row = data[len(job.seen)], arrays[len(job.seen)]

    job = Job(first=look)
    job.sample, job.row = data[100], arrays[100]
    run(job, 4, additional=AdditionalState({}, job.optimizer, plain_state_of(job, ())))
    assert data == [[float(index)] for index in range(20_000)]
    assert all(row[0] == index for index, row in enumerate(arrays))


def changed_module(make_changes: Callable[[nn.Module], Any], *, declares: bool = False) -> None:
    model, teacher = nn.Linear(2, 1), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    modules = UndeclaredState(
        model, optimizer, AdditionalState({"t": teacher} if declares else {}, optimizer), Holder()
    )
    modules.begin_step(0)
    make_changes(teacher)
    modules.require_unchanged(0)


def change_by_numpy(teacher: nn.Module) -> None:
    np.copyto(teacher[0].weight.data.numpy(), 3.0)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda teacher: nn.init.ones_(teacher[0].weight), "0.weight"),
        (lambda teacher: teacher[0].weight.data.mul_(2.0), "0.weight"),
        (lambda teacher: teacher(torch.randn(4, 2)), "1.running_mean|1.num_batches_tracked"),
        (change_by_numpy, "0.weight"),
    ],
)
def test_a_module_that_is_no_state_must_not_change(change: Callable[[nn.Module], Any], name: str) -> None:
    with pytest.raises(TrainingFailed, match=rf"train\(\) changed ({name}) of a Sequential in iteration 0"):
        changed_module(change)
    changed_module(change, declares=True)
    changed_module(lambda teacher: teacher.eval()(torch.randn(4, 2)))


class Averages:
    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: each.detach().clone() for name, each in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, each in model.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * each.detach()

    def update_in_place(self, model: nn.Module) -> None:
        for name, each in model.named_parameters():
            self.shadow[name].mul_(0.9).add_(each.detach(), alpha=0.1)


class Holder:
    pass


def step_with_attributes(change: Callable[[Any, nn.Module], None]) -> None:
    model, job = nn.Linear(2, 2), Holder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.averages, job.center, job.seen, job.made = Averages(model), torch.zeros(2), torch.zeros(1), None
    job.bank = np.zeros((1000, 100))
    undeclared = UndeclaredState(model, optimizer, AdditionalState({}, optimizer), job)
    for iteration in range(3):
        undeclared.begin_step(iteration)
        nn.init.normal_(model.weight)
        change(job, model)
        undeclared.require_unchanged(iteration)


def write_into_bank(job: Any, model: nn.Module) -> None:
    job.bank[:] = 1.0


def replace_bank(job: Any, model: nn.Module) -> None:
    job.bank = job.bank + 1


def replace_center(job: Any, model: nn.Module) -> None:
    job.center = job.center + 1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda job, model: job.averages.update(model), r"self\.averages\.shadow\['weight'\]"),
        (lambda job, model: job.averages.update_in_place(model), r"self\.averages\.shadow\['weight'\]"),
        (replace_center, r"self\.center"),
        (write_into_bank, r"self\.bank"),
        (replace_bank, r"self\.bank"),
    ],
)
def test_tensors_in_attributes_must_not_change(change: Callable[[Any, nn.Module], None], name: str) -> None:
    with pytest.raises(TrainingFailed, match=rf"train\(\) changed {name} in iteration 0"):
        step_with_attributes(change)


def test_tensors_that_train_makes_and_sums_of_numbers_are_no_state() -> None:
    def keep(job: Any, model: nn.Module) -> None:
        job.made = model.weight.detach() * 2
        job.seen += 1
        job.center = job.center.clone()

    step_with_attributes(keep)


class Script:
    """The function of a script with a loop, paused at its next batch."""

    watched = nullcontext
    is_last_part = True

    def __init__(self, loop: Generator[None, None, None]) -> None:
        self.loop = loop
        next(loop)

    def loop_exits(self) -> tuple[str, ...]:
        return ()

    def script_frames(self) -> Iterator[FrameType]:
        yield self.loop.gi_frame


def steps_of_script(write: Callable[[nn.Module], Generator[None, None, None]]) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    script = Script(write(model))
    undeclared = UndeclaredState(model, optimizer, AdditionalState({}, optimizer), script)
    for iteration in range(3):
        undeclared.begin_step(iteration)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        next(script.loop)
        undeclared.require_unchanged(iteration)


def averages_in_a_dict(model: nn.Module) -> Generator[None, None, None]:
    shadow = {name: each.detach().clone() for name, each in model.named_parameters()}
    while True:
        yield
        for name, each in model.named_parameters():
            shadow[name] = 0.9 * shadow[name] + 0.1 * each.detach()


def average_in_a_variable(model: nn.Module) -> Generator[None, None, None]:
    average = model.weight.detach().clone()
    while True:
        yield
        average = 0.9 * average + 0.1 * model.weight.detach()


def average_in_place(model: nn.Module) -> Generator[None, None, None]:
    average = model.weight.detach().clone()
    while True:
        yield
        average.mul_(0.9).add_(model.weight.detach(), alpha=0.1)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (averages_in_a_dict, r"shadow\['weight'\]"),
        (average_in_a_variable, "average"),
        (average_in_place, "average"),
    ],
)
def test_averages_in_variables_of_a_script_must_not_change(
    write: Callable[[nn.Module], Generator[None, None, None]], name: str
) -> None:
    with pytest.raises(TrainingFailed, match=rf"train\(\) changed {name} in iteration 0"):
        steps_of_script(write)


def test_other_variables_of_a_script_may_change() -> None:
    def loop(model: nn.Module) -> Generator[None, None, None]:
        first, mean = model.weight.detach().clone(), torch.zeros(())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad
        while True:
            yield
            before = model.weight.detach().clone()
            mean = mean + (before - first).norm()
            gradient.zero_()

    steps_of_script(loop)


def test_settings_may_differ_between_the_end_of_a_step_and_the_next(run: Callable[..., Job]) -> None:
    def set_rate(job: Job) -> None:
        job.optimizer.param_groups[0]["lr"] = 0.1 / (1 + len(job.seen) // 4)

    job = Job(first=set_rate)
    run(job, 4, additional=AdditionalState({}, job.optimizer))
    assert job.optimizer.param_groups[0]["lr"] == 0.1 / NUM_STEPS
