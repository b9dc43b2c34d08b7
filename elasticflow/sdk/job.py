"""The class that users subclass: a training job without a number of GPUs (ElasticFlow, Table 1).

The import needs no torch: a machine without torch can describe and submit a job.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from elasticflow.errors import InvalidJob
from elasticflow.sdk.job_fields import (
    Condition,
    as_float,
    class_of,
    gpu_types_of,
    metric_condition,
    plain,
    undeclared,
    uri_of,
)
from elasticflow.shared.messages.job_environment import OwnEnvironment, SealedSecret
from elasticflow.shared.messages.job_spec import JobClass, JobSpec, Scalar
from elasticflow.shared.messages.worker_protocol.from_worker import ARTIFACT_VARIABLE
from elasticflow.shared.training_interface import OnStep, Stateful, offered_whole_batch
from elasticflow.times import Duration, Moment, seconds_of, timestamp_of

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


class ElasticJob:
    """One training job. Override the four methods that raise TypeError here; the others have defaults.

        class Digits(ElasticJob):
            hyperparameters = {"global_batch_size": 128, "learning_rate": 0.05}
            max_iterations = 300

            def init_model(self): ...
            def init_dataset(self): ...
            def init_optimizer(self, model): ...
            def train(self, batch, model, optimizer): ...

        job = Digits().set_hyperparameter(learning_rate=0.1).set_deadline(within="2m")

    Declarations in the class hold for all its jobs; the setters change one job.
    The methods run on the nodes, in one process for each GPU of the job; the number of GPUs changes while it trains.
    The worker calls `train` once for each virtual node, a fixed part of the global batch. The calls of one process
    synchronize in `backward()` and in `optimizer.step()`: the result has the same bits on any number of GPUs.

    A resize keeps the state of the model, of the optimizer and of the objects that `stateful` returns, and plain
    attributes of `self`: numbers, texts and containers of them. Other attributes start again; `train` may not change
    tensors in them.
    """

    # --- declarations in the class; see the setters ---

    hyperparameters: Mapping[str, Scalar] = {}  # inside the methods: all of them, global_batch_size too
    max_iterations: int | None = None
    metric_conditions: Mapping[str, Condition] = {}
    job_class: JobClass | Literal["slo", "soft", "best_effort", "padding"] = JobClass.SLO
    priority: float = 1.0  # beside other jobs of its tenant without a promise: twice as much counts double
    seed: int = 0  # of the initial model, the data order and the random numbers in each step
    model_name: str = ""  # jobs with one name, global batch and sharding share one measured throughput profile
    speed_neutral: Sequence[str] = (
        "learning_rate",
        "lr",
    )  # hyperparameters: jobs that differ in them alone share it too
    share_profile: bool = False  # of that profile: with jobs of other tenants that set this too
    description: str = ""
    min_gpus: int = 1  # if it does not run, or does not converge, on fewer; powers of two
    max_gpus: int | None = None  # the same on more; equal to min_gpus: an inelastic job
    gpus_per_replica: int = 1  # that hold the model together, on one node: 1, 2, 4, 8, ...
    gpu_type: str = ""  # of all its GPUs, as `eflow nodes` shows it, or several: "A100,V100"; "": the pool decides
    gpu_memory_bytes: int = 0  # that each GPU has at least; 0: any
    mixed_gpu_types: bool = False  # idle GPUs of other types may join a bitwise job too; max_gpus is for each type
    environment: Mapping[str, str] = {}  # variables of its processes
    requirements: Sequence[str] = ()  # lines of a requirements file: packages that each node installs for the job
    own_environment: OwnEnvironment | None = None  # instead of the node's packages; see set_own_environment
    data_uris: Mapping[str, str | Path] = {}  # what each node fetches for the job, or has at a path; see `data_path`
    start_timeout_s: float = 0.0  # a start may take so long, such as init_model(); 0: the pool's stall_timeout_s
    stall_timeout_s: float = 0.0  # the job may go on so long without an iteration; 0: the pool's
    shard_optimizer: bool = False  # each GPU holds a part of the optimizer's state: its memory divided by their number

    evaluate_every: ClassVar[int] = 0  # iterations between two evaluations; 0: only at the end
    evaluates_in_parts: ClassVar[bool] = False  # on all workers, by evaluate_part instead of evaluate
    shuffle: ClassVar[bool] = True  # the samples, in another order in each epoch
    shuffle_window: ClassVar[int] = 1024  # samples; for data in partitions
    data_workers: ClassVar[int] = 1  # processes of each worker that read ahead; 0: the worker reads
    reproducible: ClassVar[Literal["bitwise", "fast"]] = "bitwise"  # the same bits on any number of GPUs
    virtual_nodes: ClassVar[int] = 0  # parts of a batch, the most GPUs of a bitwise job; 0: measured
    find_unused_parameters: ClassVar[bool] = False  # "fast": a step may leave parameters without gradient

    on_step: ClassVar[OnStep | None] = None  # or a method: gets each iteration and its metrics, once, in one process

    # --- set by the worker ---

    iteration: int = 0  # done before this call of train() or evaluate(), e.g. for a learning-rate schedule

    # --- set by train ---

    is_over: bool = False  # True: the job ends after this iteration, e.g. to stop early

    # --- set by set_deadline ---

    _deadline_s: float | None = None
    _deadline_in_s: float | None = None

    # --- set by set_own_environment: what its file says, and the file ---

    _requires_python: tuple[str, str] = ("", "")

    # --- set by set_sealed_secrets ---

    _secrets: tuple[SealedSecret, ...] = ()

    @property
    def artifacts_folder(self) -> Path:
        """The folder on the nodes whose files `eflow fetch` brings back. Only the files of rank 0's node count, where
        `on_step` and `evaluate` are called. Code without the job finds it in the variable EF_ARTIFACTS."""
        folder = os.environ.get(ARTIFACT_VARIABLE)
        if folder is None:
            raise RuntimeError(f"artifacts_folder: only workers of a job have one ({ARTIFACT_VARIABLE} is not set)")
        return Path(folder)

    # --- methods that run on the nodes ---

    def init_model(self) -> nn.Module:
        """The model, on the CPU, with its initial weights."""
        raise TypeError(f"{type(self).__name__} lacks init_model")

    def init_dataset(self) -> Any:
        """The training data, the same in every call and on every node. Each sample occurs once an epoch.

        Map-style: `len()` and `[]`, shuffled as a whole. With an attribute `partition_sizes` (e.g. samples in each
        file) the order keeps reads of a partition together.
        Sequential: `partition_sizes` and a method `read_partition(partition, start)` that returns an iterator over
        the partition's samples from `start`; or any iterable with a `len()`, such as a torch IterableDataset.
        A stream: an iterable without a `len()`, in its own order, which each worker reads; its `set_epoch(epoch)`, if
        it has one, is called before each epoch. It must give the same samples each time it is opened.
        """
        raise TypeError(f"{type(self).__name__} lacks init_dataset")

    def init_optimizer(self, model: nn.Module) -> Optimizer:
        raise TypeError(f"{type(self).__name__} lacks init_optimizer")

    def sharded_blocks(self, model: nn.Module) -> Iterable[nn.Module]:
        """The modules that the GPUs of a replica gather one after another, where `gpus_per_replica` is above 1.

        By default the members of each ModuleList: the layers of most models. What lies in none of them is gathered for
        the whole pass. Each is at most once in the list, and none lies in another one.
        """
        lists = (module for module in model.modules() if type(module).__name__ == "ModuleList")
        return [block for each in lists for block in each.children()]

    def stateful(self) -> Mapping[str, Stateful]:
        """Further state of the job, by name: for example learning-rate schedules or an average of the weights.

        Called once, after `init_optimizer`. Workers that join receive this state, checkpoints hold it, and workers
        compare it. `train` changes these objects as on one device: once in each iteration, and in the same way for any
        part of the batch.
        """
        return {}

    def train(
        self, batch: Any, model: nn.Module, optimizer: Optimizer
    ) -> Tensor | float | Mapping[str, Tensor | float]:
        """One iteration on a batch, written as for one device: zero_grad, loss, backward, step.

        batch: the result of `collate`, its tensors on the model's device.
        The loss must be a mean over the batch. Between backward and step, the gradients are those of the global
        batch. Returns the loss, or metrics by name with a "loss", the same names in each call; the worker averages
        them over the global batch.
        """
        raise TypeError(f"{type(self).__name__} lacks train")

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Metrics of the model on other data. One process calls it in evaluation mode without gradients, every
        `evaluate_every` iterations and at the end."""
        del model
        return {}

    def evaluate_part(self, model: nn.Module, part: int, num_parts: int) -> Mapping[str, float]:
        """Sums over one part of other data, for example {"correct": 93, "samples": 100}, with the same names in each
        part. Called as `evaluate` is, but on all workers, if `evaluates_in_parts`."""
        raise TypeError(f"{type(self).__name__} lacks evaluate_part")

    def metrics_of_sums(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        """Metrics from what all parts together returned; by default the sums."""
        return sums

    def collate(self, samples: list[Any]) -> Any:
        """A batch from samples of the data set; by default torch's `default_collate`, which stacks tensors."""
        from torch.utils.data import default_collate  # pyright: ignore[reportUnknownVariableType]

        return default_collate(samples)

    # --- requirements of the job ---

    def set_hyperparameter(
        self,
        *,
        global_batch_size: int | None = None,
        learning_rate: float | None = None,
        **more: Scalar,
    ) -> Self:
        """Set hyperparameters by name and keep the others. Values are numbers, texts or booleans.

        global_batch_size: samples in one iteration over all workers, independent of their number.
        Raises InvalidJob for a name that the class does not declare, although it declares others.
        """
        given = {"global_batch_size": global_batch_size, "learning_rate": learning_rate, **more}
        named = {name: value for name, value in given.items() if value is not None}
        known = {*type(self).hyperparameters, *self.hyperparameters}
        problems = undeclared(type(self).__name__, known, named, "hyperparameter")
        if problems and type(self).hyperparameters:
            raise InvalidJob(*problems)
        self.hyperparameters = {**self.hyperparameters, **named}
        return self

    def term_condition(
        self,
        *,
        max_iterations: int | None = None,
        metric_conditions: Mapping[str, Condition] | None = None,
    ) -> Self:
        """End the job after max_iterations, or as soon as one metric condition is met.

        metric_conditions: e.g. {"accuracy": (">=", 0.97)}, for metrics that train or evaluate return.
        max_iterations is required: admission plans for it.
        """
        if max_iterations is not None:
            self.max_iterations = max_iterations
        if metric_conditions is not None:
            self.metric_conditions = metric_conditions
        return self

    def set_deadline(self, deadline: Moment | None = None, *, within: Duration | None = None) -> Self:
        """The moment by which the job must be done: one of the two.

        deadline: a datetime (without a time zone: local time) or seconds since 1970.
        within: a timedelta, seconds, or a text like "10m", counted from the decision. Raises InvalidJob.
        """
        if (deadline is None) == (within is None):
            raise InvalidJob("deadline: give either a datetime or within=...")
        try:
            self._deadline_s = timestamp_of(deadline) if isinstance(deadline, datetime) else as_float(deadline)
            is_parsed = isinstance(within, timedelta | str)
            self._deadline_in_s = seconds_of(within) if is_parsed else as_float(within)
        except ValueError as error:
            raise InvalidJob(f"deadline: {error}") from None
        return self

    def set_job_class(self, job_class: JobClass | Literal["slo", "soft", "best_effort", "padding"]) -> Self:
        """slo (default): admitted only if the deadline can be promised. soft: the scheduler tries to meet the
        deadline, but breaks no promise for it. best_effort: no deadline, runs on GPUs that no promise needs.
        padding: lowest priority, runs on GPUs that no other job uses."""
        self.job_class = job_class
        return self

    def set_priority(self, priority: float) -> Self:
        """Its weight beside other jobs of its tenant without a promise, above 0; 1 unless given.

        It does not count beside jobs of other tenants, and promises do not depend on it.
        """
        self.priority = priority
        return self

    def set_gpus(
        self,
        *,
        min_gpus: int | None = None,
        max_gpus: int | None = None,
        gpus_per_replica: int | None = None,
        gpu_type: str | None = None,
        gpu_memory_bytes: int | None = None,
    ) -> Self:
        """Limit the number of GPUs, powers of two, if the job does not run or converge on others.

        gpus_per_replica: so many GPUs of one node hold the model together, and the job has whole multiples of them.
        gpu_type: all of them have this type, or one of these: "A100,V100". gpu_memory_bytes: of each GPU, at least.
        """
        if min_gpus is not None:
            self.min_gpus = min_gpus
        if max_gpus is not None:
            self.max_gpus = max_gpus
        if gpus_per_replica is not None:
            self.gpus_per_replica = gpus_per_replica
        if gpu_type is not None:
            self.gpu_type = gpu_type
        if gpu_memory_bytes is not None:
            self.gpu_memory_bytes = gpu_memory_bytes
        return self

    def set_timeouts(self, *, start: Duration | None = None, stall: Duration | None = None) -> Self:
        """How long a start may take until all workers train, and how long the job may then go on without an iteration.

        A timedelta, seconds, or a text like "10m"; 0: as in the pool. A pool bounds both. A promise counts on the start
        that is declared until one was measured. Raises InvalidJob.
        """
        try:
            if start is not None:
                self.start_timeout_s = seconds_of(start)
            if stall is not None:
                self.stall_timeout_s = seconds_of(stall)
        except ValueError as error:
            raise InvalidJob(f"timeouts: {error}") from None
        return self

    def set_environment(self, variables: Mapping[str, str]) -> Self:
        """Set variables of the job's processes by name and keep the others. All users of the pool can read them.

        Variables of the pool, such as RANK or CUDA_VISIBLE_DEVICES, are refused.
        """
        self.environment = {**self.environment, **variables}
        return self

    def set_data(self, uris: Mapping[str, str | Path]) -> Self:
        """Name data of the job by URI and keep the others: its processes find it by `elasticflow.data_path(name)`.

        s3://, gs:// and other protocols of fsspec: each node fetches the file or folder once, before a worker starts.
        file://, or a path: it is there already on each node, for example on shared storage.
        """
        self.data_uris = {**self.data_uris, **uris}
        return self

    def set_sealed_secrets(self, secrets: tuple[SealedSecret, ...]) -> Self:
        """Set secrets that `Client.seal` has made for a pool; `submit(job, secrets=...)` does both."""
        self._secrets = secrets
        return self

    def set_requirements(self, file: str | Path) -> Self:
        """Let each node install packages for this job. file: requirements in the form of pip, or a pyproject.toml.

        Raises InvalidJob, naming each line that nodes cannot install.
        """
        from elasticflow.sdk.requirements import read_requirements  # here: workers import this module

        self.requirements = read_requirements(file)
        return self

    def set_own_environment(self, file: str | Path | None = None, *, python: str | None = None) -> Self:
        """Let each node make a Python environment for this job, instead of its own with more packages.

        file: uv.lock, requirements in the form of pip, or a pyproject.toml. python: "3.12"; by default that of each
        node. What is not given stays as it was set. Raises InvalidJob, naming what nodes cannot install.
        """
        from elasticflow.sdk.requirements import check_python, read_environment  # here: workers import this module

        own = self.own_environment or OwnEnvironment()
        if file is not None:
            requirements, constraints, requires_python = read_environment(file)
            own = replace(own, requirements=requirements, constraints=constraints)
            self._requires_python = requires_python, str(file)
        if python is not None:
            own = replace(own, python=python)
        check_python(own.python, *self._requires_python)
        self.own_environment = own
        return self

    def spec(self, *, training_function: str = "", code_digest: str = "") -> JobSpec:
        """The specification that is submitted. Raises InvalidJob, naming each wrong field.

        training_function: module and class on the nodes; by default those of this class.
        code_digest: SHA-256 of the packaged code (packaging.py), "" if the nodes can import it.
        """
        settings = {name: plain(value) for name, value in self.hyperparameters.items()}
        gpu_type, other_gpu_types = gpu_types_of(self.gpu_type)
        spec = JobSpec(
            training_function=training_function or f"{type(self).__module__}:{type(self).__qualname__}",
            code_digest=code_digest,
            environment=dict(self.environment),
            secrets=self._secrets,
            requirements=tuple(self.requirements),
            own_environment=self.own_environment,
            data={name: uri_of(uri) for name, uri in self.data_uris.items()},
            model_name=self.model_name,
            speed_neutral=tuple(name for name in self.speed_neutral if name in settings),
            share_profile=self.share_profile,
            global_batch_size=settings.pop("global_batch_size", None),  # pyright: ignore[reportArgumentType]
            hyperparameters=settings,
            max_iterations=plain(self.max_iterations),  # pyright: ignore[reportArgumentType]
            metric_conditions=tuple(metric_condition(*item) for item in self.metric_conditions.items()),
            job_class=class_of(self.job_class),  # pyright: ignore[reportArgumentType]
            priority=plain(self.priority),
            deadline_s=self._deadline_s,
            deadline_in_s=self._deadline_in_s,
            seed=plain(self.seed),
            description=self.description,
            min_gpus=plain(self.min_gpus),
            max_gpus=plain(self.max_gpus),
            gpus_per_replica=plain(self.gpus_per_replica),
            gpu_type=gpu_type,
            other_gpu_types=other_gpu_types,
            gpu_memory_bytes=plain(self.gpu_memory_bytes),
            mixed_gpu_types=self.mixed_gpu_types,
            shard_optimizer=self.shard_optimizer,
            start_timeout_s=as_float(self.start_timeout_s),
            stall_timeout_s=as_float(self.stall_timeout_s),
        )
        has_deadline = self._deadline_s is not None or self._deadline_in_s is not None
        # Here: workers import this module but submit no job.
        from elasticflow.sdk.job_fields import mistyped_declarations, problems_of, unknown_init_methods

        mine = type(self)
        mistyped = dict.fromkeys((*mistyped_declarations(mine, ElasticJob), *unknown_init_methods(mine, ElasticJob)))
        problems = [*mistyped, *problems_of(spec, has_deadline=has_deadline)]
        if spec.gang_size > 1 and self.reproducible == "fast":
            problems.append(
                "gpus_per_replica: the fast mode does not divide a model over several GPUs: leave reproducible out, or "
                "submit a script that calls fully_shard() with --torchrun"
            )
        if problems:
            raise InvalidJob(*problems)
        return spec


# --- whole batch ---------------------------------------------------------------------------------------
# Values of the whole global batch, for `train`, which gets one part of it at a time. This imports no torch.


def mean(value: Tensor | float) -> float:
    """The mean over the global batch of what all calls of `train` give, each weighted by its samples; no gradient.

        self.schedule.step(elasticflow.mean(loss))  # ReduceLROnPlateau

    All calls of a step get the same bits, on any number of GPUs. Call it before `optimizer.step()` where possible: a
    worker that is lost behind that costs the work since the newest checkpoint. Outside of `train`: the value.
    """
    if (worker := offered_whole_batch()) is not None:
        return worker.mean(value)
    return float(value) if isinstance(value, int | float) else value.item()


def gather(tensor: Tensor) -> Tensor:
    """The rows of all parts of the global batch, in its order: for losses that compare all samples, as in CLIP, SimCLR.

        loss = contrastive(elasticflow.gather(images), elasticflow.gather(texts))

    tensor: (samples of this part, ...). Returns (samples of all parts, ...), the same bits in each call and on any
    number of GPUs, with gradients. Compute the loss of the whole batch from it, as on one device. A loss over the own
    rows only must be their mean. All parts of a worker keep their activations until then, so that smaller micro-batches
    save no memory. Outside of `train`: the tensor. Not in the fast mode, nor in scripts.
    """
    worker = offered_whole_batch()
    return tensor if worker is None else worker.gather(tensor)
