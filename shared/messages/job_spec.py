"""The specification of a job: a training function, a global batch, a termination condition and a deadline.

It has no number of GPUs (ElasticFlow, section 3.1 and Table 1), only a range for jobs that do not run on others.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from elasticflow.shared.messages.gpus import GpuRange, gang_range_problems
from elasticflow.shared.messages.job_environment import (
    DataUris,
    OwnEnvironment,
    Requirements,
    Secrets,
    Variables,
    local_path,
)
from elasticflow.shared.messages.limits import (
    MAX_TIME_S,
    BatchSize,
    Digest,
    DurationS,
    FewItems,
    Finite,
    Folder,
    FunctionPath,
    GpusPerReplica,
    GpuType,
    Identity,
    Integer,
    MaybeToken,
    ModelName,
    Name,
    NamedGpuType,
    NumBytes,
    PositiveDurationS,
    PositiveGpus,
    PositiveIterations,
    Seed,
    Text,
    TimeS,
    Token,
    Weight,
)


def _in_one_sentence(value: Any, validated: ValidatorFunctionWrapHandler) -> Any:
    """One error for a value of no allowed type, instead of one for each type. A longer integer is no float: it would be
    another number."""
    try:
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ValueError("above 63 bits")
        if not isinstance(value, bool | int | float | str):
            raise TypeError("no scalar")
        return validated(value)
    except (ValueError, TypeError):
        raise PydanticCustomError(
            "scalar", "must be a boolean, a finite number of 64 bits, or text of at most 256 characters"
        ) from None


SCRIPT = "__main__"  # instead of a class: a script whose loop is elastic
TORCHRUN = "__torchrun__"  # or an unchanged script, started as under torchrun; each resize restarts it

SCRIPT_SUFFIX = ".py"  # of a script's file, which stands for its module if its name is none

MAX_CONTINUED = 16  # jobs, each of which continued the one before

SHARED = "*"  # owns the profiles that tenants share; no tenant can have this name

Scalar = Annotated[bool | Integer | Finite | Annotated[str, FewItems], WrapValidator(_in_one_sentence)]


class JobClass(StrEnum):
    """The class of a job. A lower class never makes a job of a higher one late."""

    SLO = "slo"  # hard deadline: promised at admission, then kept
    SOFT = "soft"  # the scheduler tries to meet the deadline, but breaks no promise for it
    BEST_EFFORT = "best_effort"  # no deadline
    PADDING = "padding"  # no deadline, and only GPUs that no other job uses

    @property
    def has_deadline(self) -> bool:
        return self in (JobClass.SLO, JobClass.SOFT)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCondition:
    """Ends the job once `metric` reaches `value`, at the latest after max_iterations."""

    metric: Name
    comparison: Literal["<=", ">="]
    value: Finite

    def is_met(self, metrics: Mapping[str, float]) -> bool:
        seen = metrics.get(self.metric)
        if seen is None:
            return False
        return seen <= self.value if self.comparison == "<=" else seen >= self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedJob:
    """The ended job from whose checkpoint another one begins (docs/adr/0114). identity: as `Job.identity`.

    iteration: of the newest checkpoint that was known, or with is_exact of the only one that is taken. earlier: the
    identities of the jobs that this one had continued, whose checkpoints it may still have.
    """

    job_id: Token
    identity: Identity
    iteration: PositiveIterations
    is_exact: bool = False
    earlier: Annotated[tuple[Identity, ...], Len(max_length=MAX_CONTINUED)] = ()

    @property
    def writers(self) -> tuple[str, ...]:
        """The identities of the jobs whose checkpoints count."""
        return (self.identity, *self.earlier)[:MAX_CONTINUED]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One training job, as its user describes it (ElasticFlow, Table 1)."""

    # "package.module:Class"; SCRIPT or TORCHRUN instead of a class; "my-train.py" for a script's file that is no module
    training_function: FunctionPath
    code_digest: Digest = ""  # SHA-256 of the code archive in the object store; "": importable on the nodes
    import_folder: Folder = ""  # in the archive, of the training function's module; "": the archive itself
    environment: Variables = field(default_factory=dict[str, str])  # of its workers, beside those that the pool sets
    secrets: Secrets = ()  # variables too, sealed for the executors
    requirements: Requirements = ()  # lines of a requirements file; each node installs these packages for the job
    own_environment: OwnEnvironment | None = None  # instead of the node's, with requirements
    data: DataUris = field(default_factory=dict[str, str])  # by name: each node fetches it once, or has it (file://)
    model_name: ModelName = ""  # names the throughput profile
    global_batch_size: BatchSize
    hyperparameters: Annotated[Mapping[str, Scalar], FewItems] = field(default_factory=dict[str, Scalar])
    max_iterations: PositiveIterations  # also those of the job that it continues
    continues: ContinuedJob | None = None
    metric_conditions: Annotated[tuple[MetricCondition, ...], FewItems] = ()
    job_class: JobClass = JobClass.SLO
    deadline_s: TimeS | None = None  # absolute, seconds since 1970
    deadline_in_s: PositiveDurationS | None = None  # or relative to the first decision on the job
    seed: Seed = 0
    description: Text = ""
    sweep: MaybeToken = ""  # the sweep that it is one job of; "": none
    swept: Annotated[Mapping[str, Scalar], FewItems] = field(default_factory=dict[str, Scalar])  # its values there
    min_gpus: PositiveGpus = 1  # the job does not run, or does not converge, on fewer
    max_gpus: PositiveGpus | None = None  # nor on more; equal to min_gpus: an inelastic job
    gpu_type: GpuType = ""  # of all its GPUs; "": the pool decides
    other_gpu_types: Annotated[tuple[NamedGpuType, ...], FewItems] = ()  # that its user accepts instead of gpu_type
    gpu_memory_bytes: NumBytes = 0  # that each GPU has at least; 0: any
    mixed_gpu_types: bool = False  # other types may join a bitwise job too, with other bits; max_gpus is for each type
    gpus_per_replica: GpusPerReplica = 1  # a gang: so many GPUs of one node hold the model together (docs/adr/0055)
    shard_optimizer: bool = False  # each worker holds a part of the optimizer's state only
    start_timeout_s: DurationS = 0.0  # the longest time until its workers train; 0: the pool's stall_timeout_s
    stall_timeout_s: DurationS = 0.0  # the longest time without a step; 0: the pool's
    speed_neutral: Annotated[tuple[Name, ...], FewItems] = ()  # hyperparameters that do not change the time of a step
    priority: Weight = 1.0  # beside other jobs of its tenant without a promise; twice as much counts double
    share_profile: bool = False  # measures and reads one profile with all tenants that share theirs
    # its tenant, whatever its sender wrote: see `commands.owned`; "": an older job. No part of what a user describes
    owner: MaybeToken = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.other_gpu_types and not self.gpu_type:
            raise ValueError("must have a gpu_type if it has other_gpu_types")
        if self.requirements and self.own_environment is not None:
            raise ValueError("must have its packages in its own environment, or as requirements, not both")

    @property
    def first_iteration(self) -> int:
        """The iteration from which it trains."""
        return self.continues.iteration if self.continues is not None else 0

    @property
    def own_iterations(self) -> int:
        """The iterations from there on; 1 if none is left, which admission rejects."""
        return max(self.max_iterations - self.first_iteration, 1)

    @property
    def entry(self) -> str:
        """The class, or SCRIPT, or TORCHRUN."""
        return self.training_function.partition(":")[2]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of a script: its hyperparameters 1, 2, ..., as a shell counts them."""
        numbers = sorted((name for name in self.hyperparameters if name.isdecimal()), key=int)
        return tuple(str(self.hyperparameters[number]) for number in numbers)

    @property
    def installs_packages(self) -> bool:
        """Each node installs packages before its first start there."""
        return bool(self.requirements) or self.own_environment is not None

    @property
    def needs_preparation(self) -> bool:
        """A node has work to do, perhaps for long, before a worker of the job starts there."""
        return self.installs_packages or any(local_path(uri) is None for uri in self.data.values())

    @property
    def gpu_range(self) -> GpuRange:
        """The numbers of GPUs on which it may run: whole replicas."""
        return GpuRange.of(max(self.min_gpus, self.gpus_per_replica), self.max_gpus)

    @property
    def most_gpus(self) -> int:
        """The most GPUs that have work: each replica of a script has at least a sample, and each GPU of a class."""
        return self.global_batch_size * (self.gpus_per_replica if self.entry == TORCHRUN else 1)

    @property
    def gang_size(self) -> int:
        """Workers that hold the model of a class together. Each process of a torchrun script is by itself for us."""
        return 1 if self.entry == TORCHRUN else self.gpus_per_replica

    @property
    def profile_key(self) -> str:
        """Names the scaling curve of the job: the part of the measured curve within its range."""
        return self.gpu_range.profile_key(self.measured_key)

    @property
    def measured_key(self) -> str:
        """Names the measured curve. Jobs with the same owner, model key, global batch and GPU type share it."""
        owner = self.profile_owner
        return f"{owner}/{self.configured_key}" if owner else self.configured_key

    @property
    def configured_key(self) -> str:
        """Names the curve without an owner: that of the pool's configuration, and that of older jobs."""
        return f"{self.profile_family}@{self.gpu_type}" if self.gpu_type else self.profile_family

    @property
    def profile_family(self) -> str:
        """Names the curves of all owners and GPU types."""
        return f"{self.model_key}/b{self.global_batch_size}"

    @property
    def profile_owner(self) -> str:
        """The owner whose jobs measure its profile; "": that of all older jobs."""
        return SHARED if self.owner and self.share_profile else self.owner

    @property
    def model_key(self) -> str:
        """Names the model, or code, hyperparameters but for neutral ones, environment and data, the sharding, and the
        GPUs of a replica: what else decides the time of a step."""
        name = self.model_name
        if not name:
            deciding = {name: value for name, value in self.hyperparameters.items() if name not in self.speed_neutral}
            settings = json.dumps(deciding, sort_keys=True)
            if self.environment or self.requirements:
                settings += json.dumps([sorted(self.environment.items()), self.requirements])
            if (own := self.own_environment) is not None:
                settings += json.dumps([own.python, own.requirements, own.constraints])
            if self.data:
                settings += json.dumps(sorted(self.data.items()))
            digest = hashlib.sha256(f"{self.code_digest}{settings}".encode()).hexdigest()[:8]
            name = f"{self.training_function}#{digest}"
        if self.gpus_per_replica > 1:
            name = f"{name}#gang{self.gpus_per_replica}"
        return f"{name}#sharded" if self.shard_optimizer else name

    def resolved_deadline_s(self, now_s: float) -> float | None:
        """The absolute deadline; a relative one counts from now_s, up to the last time that a message can have."""
        if self.deadline_in_s is not None:
            return min(now_s + self.deadline_in_s, MAX_TIME_S)
        return self.deadline_s


def gang_problems(spec: JobSpec) -> list[str]:
    """What a job with several GPUs for each replica may not be, each as a sentence that says what to do."""
    if spec.gpus_per_replica <= 1:
        return []
    problems = gang_range_problems(spec.gpus_per_replica, spec.min_gpus, spec.max_gpus)
    if spec.entry == SCRIPT:
        problems.append(
            "gpus_per_replica: the script's loop trains a model that one GPU holds: write it as a class, or submit a "
            "script that shards its model with fully_shard, with --torchrun"
        )
    if spec.entry != TORCHRUN and spec.job_class is JobClass.PADDING:
        problems.append(
            "gpus_per_replica: the tasks of a padding load have one GPU each; choose another class, such as best_effort"
        )
    if spec.entry != TORCHRUN and spec.shard_optimizer:
        problems.append(
            "shard_optimizer: the GPUs of a replica divide the optimizer's state already; leave it out where "
            "gpus_per_replica is above 1"
        )
    if spec.mixed_gpu_types:
        problems.append(
            "mixed_gpu_types: the GPUs of a replica are of one type; leave it out where gpus_per_replica is above 1"
        )
    return problems
