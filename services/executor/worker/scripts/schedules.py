"""Learning-rate schedules of a script: they step once for each optimizer step, although its loop calls them in every
pass, and they are built for as many steps as the job takes, or the job is refused in its first step; if they step once
an epoch, at the end of its first epoch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim import lr_scheduler

from elasticflow.services.executor.worker.data.sample_order import Epochs
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.runtime.process.logs import log


def step_only_if(may_step: Callable[..., bool], each: Any) -> None:
    """Make the object's `step`, if it has one, act only then. may_step: gets its arguments.

    A subclass does this, because torch's schedules save all their attributes as state.
    """
    kind = type(each)
    if not hasattr(kind, "step"):
        return

    def step(schedule: Any, *args: Any, **kwargs: Any) -> None:
        if may_step(*args, *kwargs.values()):
            kind.step(schedule, *args, **kwargs)

    each.__class__ = type(kind.__name__, (kind,), {"step": step})


class JobLength:
    """The optimizer steps that the job takes, as far as they are known.

    epochs: of its data; None without a length. max_epochs, max_steps: at which its loop ends; None without a limit.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._global_batch_size = spec.global_batch_size
        # one is what a profiling run gets without a number of iterations
        self.max_iterations = spec.max_iterations if spec.max_iterations > 1 else None
        self.epochs: Epochs | None = None
        self.max_epochs: int | None = None
        self.max_steps: int | None = None

    @property
    def in_loop(self) -> int | None:
        """The steps before the job's loop ends by itself."""
        of_epochs = None if self.epochs is None or self.max_epochs is None else self.epochs.iterations(self.max_epochs)
        return _least(of_epochs, self.max_steps)

    @property
    def iterations(self) -> int | None:
        return _least(self.in_loop, self.max_iterations)

    @property
    def num_epochs(self) -> int | None:
        """The epochs in which the job's steps begin."""
        steps = self.iterations
        return None if steps is None or self.epochs is None else self.epochs.number(steps - 1) + 1

    def require(self, plan: "Plan", *, is_by_epoch: bool) -> None:
        """Raises TrainingFailed unless the schedule fits."""
        if misfit := self.misfit_of(plan, is_by_epoch=is_by_epoch):
            raise TrainingFailed(misfit)

    def misfit_of(self, plan: "Plan", *, is_by_epoch: bool) -> str:
        """Why the schedule does not fit, with both numbers and what to change; "" if it fits."""
        steps = self.iterations
        if steps is None or (is_by_epoch and self.epochs is None):
            return ""
        num_epochs = self.num_epochs or 1
        found, unit = (num_epochs, "epochs") if is_by_epoch else (steps, "steps")
        # a loader of which each epoch ends with a smaller batch has up to one step more in an epoch
        rounding = 0 if is_by_epoch else num_epochs
        # and the job may not end its last epoch
        ended = self.epochs.number(steps) if is_by_epoch and self.epochs is not None else found - rounding
        least = found if plan.must_reach else ended
        if plan.length <= found + rounding and (plan.may_end_early or plan.length >= least):
            return ""
        advice = f"build it for {found} {unit}"
        needed = plan.length if not is_by_epoch or self.epochs is None else self.epochs.iterations(plan.length)
        if steps == self.max_iterations and (self.in_loop is None or self.in_loop >= needed > steps):
            advice = f"submit with --iterations {needed}, or {advice}"
        return (
            f"the schedule {plan.name} is built for {plan.length} {unit}, but the job takes {found}, with global "
            f"batches of {self._global_batch_size} samples{self._limit(steps)}: {advice}"
        )

    def require_reachable(self, plan: "Plan") -> None:
        """Raises TrainingFailed if a schedule whose rhythm is unknown, and that steps once a step at most, cannot reach
        its end."""
        steps, num_epochs = self.iterations, self.num_epochs
        if steps is None or num_epochs is None or plan.length <= steps + num_epochs:
            return
        raise TrainingFailed(
            f"the schedule {plan.name} is built for {plan.length} steps, but the job takes {steps}, in {num_epochs} "
            f"epochs, with global batches of {self._global_batch_size} samples{self._limit(steps)}: build it for "
            f"{num_epochs} if it steps once an epoch, or for {steps} if it steps once a step"
        )

    def is_sure_of(self, plan: "Plan") -> bool:
        """Whether a schedule for other epochs is wrong: a loop without a limit may end with a shorter one."""
        return self.in_loop is not None or plan.length > (self.num_epochs or 0)

    def _limit(self, steps: int) -> str:
        return f" and --iterations {steps}" if steps == self.max_iterations else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number of steps for which a schedule is built. may_end_early: it then stays constant. must_reach: it raises
    behind its end."""

    name: str
    length: int
    may_end_early: bool = False
    must_reach: bool = False


def plan_of(schedule: Any) -> Plan | None:
    """The plan of a schedule; None for one without an end, or whose end is not known."""
    plan = partial(Plan, name=type(schedule).__name__)
    match schedule:
        case lr_scheduler.OneCycleLR():
            return plan(length=int(schedule.total_steps), must_reach=True)
        case lr_scheduler.CosineAnnealingLR():
            return plan(length=int(schedule.T_max))
        case lr_scheduler.PolynomialLR():
            return plan(length=schedule.total_iters)
        case lr_scheduler.LinearLR() if schedule.end_factor < schedule.start_factor:
            return plan(length=schedule.total_iters, may_end_early=True)
        case lr_scheduler.SequentialLR():
            last = plan_of(schedule._schedulers[-1])  # pyright: ignore[reportAttributeAccessIssue]
            if last is None:
                return None
            start = schedule._milestones[-1]  # pyright: ignore[reportAttributeAccessIssue]
            return plan(length=start + last.length, may_end_early=last.may_end_early, must_reach=last.must_reach)
        case lr_scheduler.LambdaLR():  # of transformers
            planned = [getattr(each, "keywords", {}).get("num_training_steps") for each in schedule.lr_lambdas]
            lengths = [int(number) for number in planned if number is not None]
            return plan(length=max(lengths)) if lengths else None
        case _:
            return None


class ScheduleCheck:
    """Compares the plan of a schedule with the job's length, as soon as it is known what its steps are.

    has_stepped: with the optimizer, in this epoch; its owner sets it.
    """

    def __init__(self, schedule: Any, length: JobLength) -> None:
        self._name, self._schedule = type(schedule).__name__, schedule
        self._numbers: tuple[int, list[float]] = (-1, [])  # of an iteration, with which it steps
        self._plan = plan_of(schedule)
        self._length = length
        self._is_within_epoch = False  # an iteration within an epoch has ended, and the schedule did not step in it
        self.has_stepped = False

    def require_same_numbers(self, iteration: int, arguments: Sequence[Any]) -> None:
        """Check, in each pass through the loop, that a metric with which the schedule steps is not one of a part of the
        batch. Raises TrainingFailed."""
        numbers = [float(each) for each in arguments if isinstance(each, int | float) or _is_scalar(each)]
        known, first = self._numbers
        self._numbers = iteration, numbers
        if known == iteration and numbers != first:
            raise TrainingFailed(
                f"the schedule {self._name} steps with {first} after one part of the global batch and with {numbers} "
                "after another. Step it with a value that all parts share, such as one of the whole validation set; or "
                "write a class, and step it with elasticflow.mean(loss)"
            )

    def loop_begins(self) -> None:
        """A schedule for as many steps as the loop has epochs steps once an epoch, unless the job has as many steps.
        Raises TrainingFailed."""
        if self._plan is None:
            log.info("schedule_not_compared", schedule=self._name, reason="its length is not known")
            return
        if self._plan.length != self._length.max_epochs:
            return
        if self._length.misfit_of(self._plan, is_by_epoch=False):
            self._length.require(self._plan, is_by_epoch=True)
            self._plan = None

    def iteration_ends(self, *, epoch_ends: bool, epochs_done: int) -> None:
        """A schedule that steps in the first one, within an epoch, does so in each. One that steps at the end of the
        epoch, and has by then stepped once for each, steps once an epoch. Raises TrainingFailed."""
        if self._plan is None:
            return
        if epoch_ends:
            self._epoch_ends(self._plan, epochs_done)
        elif self._is_within_epoch:
            if self.has_stepped:  # in a rhythm of its own, as every hundred steps
                self._plan = None
        elif self.has_stepped or self._plan.length == self._length.max_epochs:
            self._length.require(self._plan, is_by_epoch=not self.has_stepped)
            self._plan = None
        else:
            self._length.require_reachable(self._plan)
            self._is_within_epoch = True

    def _epoch_ends(self, plan: Plan, epochs_done: int) -> None:
        steps_by_epoch = self.has_stepped and self._schedule.last_epoch == epochs_done
        self.has_stepped = False  # in the next epoch
        if not self._is_within_epoch:  # the step is that of the iteration, or that of the epoch
            return
        self._plan = None
        num_epochs = self._length.num_epochs
        # behind the last epoch, the step of the schedule changes nothing
        if steps_by_epoch and num_epochs is not None and epochs_done < num_epochs and self._length.is_sure_of(plan):
            self._length.require(plan, is_by_epoch=True)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1


def _least(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)
