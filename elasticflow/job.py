"""The class that users subclass: a training job, said without a number of GPUs (ElasticFlow, Table 1).

Importing it imports no torch: a job can be described and submitted from a machine that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from shared.messages.job import JobClass, JobSpec, MetricCondition, Scalar

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Condition = tuple[Literal["<=", ">="], float]


class InvalidJob(ValueError):
    """The job cannot be submitted as it is. problems: one line for each field that is wrong."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class ElasticJob:
    """One training job. Override the four methods without a body here; the rest have defaults.

        class Digits(ElasticJob):
            hyperparameters = {"global_batch_size": 128, "learning_rate": 0.05}
            max_iterations = 300

            def init_model(self): ...
            def init_dataset(self): ...
            def init_optimizer(self, model): ...
            def train(self, batch, model, optimizer): ...

        job = Digits().set_hyperparameter(learning_rate=0.1).set_deadline(within=120)

    What is declared in the class holds for every job of it; the setters change one job.
    The methods run on the nodes, in as many processes as the job has GPUs; how many that are changes while the job
    trains. `train` is called once for each virtual node, a fixed part of the global batch, and the calls of one
    process meet in `backward()` and in `optimizer.step()`: what they compute is the same bits on any number of GPUs.

    Only the state of the model and of the optimizer outlives such a change: tensors and plain numbers, as their
    `state_dict()` holds them. Attributes of `self` and learning-rate schedulers start anew; derive what changes with
    time from `self.iteration`.
    """

    # --- what may be declared in the class; see the setters ---

    hyperparameters: Mapping[str, Scalar] = {}  # inside the methods: all of them, global_batch_size too
    max_iterations: int | None = None
    metric_conditions: Mapping[str, Condition] = {}
    job_class: JobClass | Literal["slo", "soft", "best_effort", "padding"] = JobClass.SLO
    seed: int = 0  # of the initial model, the data order and the random numbers in each step
    model_name: str = ""  # jobs with one name and global batch share one measured throughput profile
    description: str = ""
    min_gpus: int = 1  # only for what does not run, or does not converge, on fewer; powers of two are used
    max_gpus: int | None = None  # nor on more; the same as min_gpus: an inelastic job

    evaluate_every: ClassVar[int] = 0  # iterations between two calls of evaluate; 0: only at the end
    shuffle: ClassVar[bool] = True  # the samples of each epoch anew
    shuffle_window: ClassVar[int] = 1024  # of data in partitions: samples that are shuffled among each other
    data_workers: ClassVar[int] = (
        1  # processes that read ahead for each worker; 0: it reads what is due by itself
    )
    reproducible: ClassVar[Literal["bitwise", "fast"]] = (
        "bitwise"  # the same bits on any number of GPUs, or not
    )
    virtual_nodes: ClassVar[int] = (
        0  # parts of a batch, so most GPUs of a bitwise job; 0: up to 8, by the batch
    )
    find_unused_parameters: ClassVar[bool] = (
        False  # "fast": True if a step may leave parameters without gradient
    )

    # --- set by the worker ---

    iteration: int = 0  # iterations done before this call of train, e.g. for a learning-rate schedule

    # --- set by train ---

    is_over: bool = False  # True: the job ends after this iteration, e.g. to stop early

    # --- set by set_deadline ---

    _deadline_s: float | None = None
    _deadline_in_s: float | None = None

    # --- what the job does, on the nodes ---

    def init_model(self) -> nn.Module:
        """The model, on the CPU, with its initial weights."""
        raise TypeError(f"{type(self).__name__} lacks init_model")

    def init_dataset(self) -> Any:
        """The training data, the same on every call and every node.

        Map-style: `len()` and `[]`, shuffled as a whole; with an attribute `partition_sizes` (samples in each file,
        say), in an order in which reads stay together. Or read in order: `partition_sizes` and a method
        `read_partition(partition, start)` that returns an iterator over the partition's samples from `start` on; or
        any iterable with a `len()`, such as a torch IterableDataset. Each sample comes once an epoch.
        """
        raise TypeError(f"{type(self).__name__} lacks init_dataset")

    def init_optimizer(self, model: nn.Module) -> Optimizer:
        raise TypeError(f"{type(self).__name__} lacks init_optimizer")

    def train(
        self, batch: Any, model: nn.Module, optimizer: Optimizer
    ) -> Tensor | float | Mapping[str, Tensor | float]:
        """One iteration on a batch, as on one device: zero_grad, loss, backward, step.

        batch: what `collate` made, its tensors on the model's device.
        The loss must be a mean over the batch; between backward and step, gradients are those of the global
        batch. Returns the loss, or metrics by name ("loss" among them), the same names each time; they are
        averaged over the global batch.
        """
        raise TypeError(f"{type(self).__name__} lacks train")

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Metrics of the model on data of your choice. Called in evaluation mode, without gradients, in one
        process: every `evaluate_every` iterations and at the end."""
        del model
        return {}

    def collate(self, samples: list[Any]) -> Any:
        """A batch from samples of the data set; torch's default, which stacks tensors."""
        from torch.utils.data import default_collate

        return default_collate(samples)

    # --- what the job asks for ---

    def set_hyperparameter(
        self,
        *,
        global_batch_size: int | None = None,
        learning_rate: float | None = None,
        **more: Scalar,
    ) -> Self:
        """Hyperparameters by name; those not named stay. Values are numbers, texts or truth values.

        global_batch_size: samples in one iteration, over all workers. It never changes with their number.
        """
        given: dict[str, Scalar | None] = {
            "global_batch_size": global_batch_size,
            "learning_rate": learning_rate,
            **more,
        }
        named = {name: value for name, value in given.items() if value is not None}
        self.hyperparameters = {**self.hyperparameters, **named}
        return self

    def term_condition(
        self,
        *,
        max_iterations: int | None = None,
        metric_conditions: Mapping[str, Condition] | None = None,
    ) -> Self:
        """When the job is done: after max_iterations, or as soon as one metric condition is met.

        metric_conditions: e.g. {"accuracy": (">=", 0.97)}, on metrics that train or evaluate return.
        Admission counts on max_iterations, so it is always needed.
        """
        if max_iterations is not None:
            self.max_iterations = max_iterations
        if metric_conditions is not None:
            self.metric_conditions = metric_conditions
        return self

    def set_deadline(
        self, *, at: datetime | float | None = None, within: timedelta | float | None = None
    ) -> Self:
        """The moment by which the job must be done.

        at: absolute, a datetime (without a time zone: local time) or seconds since 1970.
        within: seconds or a timedelta, counted from the moment of the decision.
        """
        if (at is None) == (within is None):
            raise InvalidJob("deadline: give either at=... or within=...")
        self._deadline_s = at.timestamp() if isinstance(at, datetime) else _as_float(at)
        self._deadline_in_s = within.total_seconds() if isinstance(within, timedelta) else _as_float(within)
        return self

    def set_job_class(self, job_class: JobClass | Literal["slo", "soft", "best_effort", "padding"]) -> Self:
        """slo (default): admitted only if the deadline can be promised. soft: the deadline is tried, never at
        the expense of a promise. best_effort: no deadline, runs on what is left.
        padding: below all, on what nobody else would use."""
        self.job_class = job_class
        return self

    def set_gpus(self, *, min_gpus: int | None = None, max_gpus: int | None = None) -> Self:
        """A range for what does not run, or does not converge, on other numbers; powers of two of it are used."""
        if min_gpus is not None:
            self.min_gpus = min_gpus
        if max_gpus is not None:
            self.max_gpus = max_gpus
        return self

    def spec(self, *, training_function: str = "", code_digest: str = "") -> JobSpec:
        """The job as the message that is submitted. Raises InvalidJob, naming each field that is wrong.

        training_function: where nodes find the class; its own module and name by default.
        code_digest: SHA-256 of the packaged code, "" if the nodes can import it (see packaging.py).
        """
        settings = dict(self.hyperparameters)
        spec = JobSpec(
            training_function=training_function or f"{type(self).__module__}:{type(self).__qualname__}",
            code_digest=code_digest,
            model_name=self.model_name,
            global_batch_size=settings.pop("global_batch_size", None),  # pyright: ignore[reportArgumentType]
            hyperparameters=settings,
            max_iterations=self.max_iterations,  # pyright: ignore[reportArgumentType]
            metric_conditions=tuple(_metric_condition(*item) for item in self.metric_conditions.items()),
            job_class=self.job_class,  # pyright: ignore[reportArgumentType]
            deadline_s=self._deadline_s,
            deadline_in_s=self._deadline_in_s,
            seed=self.seed,
            description=self.description,
            min_gpus=self.min_gpus,
            max_gpus=self.max_gpus,
        )
        has_deadline = self._deadline_s is not None or self._deadline_in_s is not None
        # Here: workers import this module, and submit nothing.
        from elasticflow.job_problems import problems_of

        problems = problems_of(spec, has_deadline=has_deadline)
        if problems:
            raise InvalidJob(*problems)
        return spec


def _metric_condition(metric: str, condition: Any) -> MetricCondition:
    try:
        comparison, value = condition
    except (TypeError, ValueError) as error:
        problem = f'metric_conditions.{metric}: must be like (">=", 0.97), not {condition!r:.80}'
        raise InvalidJob(problem) from error
    return MetricCondition(metric=metric, comparison=comparison, value=_as_float(value))


def _as_float(value: Any) -> Any:
    """A whole number of seconds is a number of seconds; anything else is left for validation to name."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
