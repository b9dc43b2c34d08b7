"""What a user asks for: a training function, a global batch, a termination condition and a deadline.

Not a number of GPUs (ElasticFlow, section 3.1 and Table 1); a range of them only for what does not run elsewhere.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from elasticflow.shared.messages.gpu_limits import GpuRange
from elasticflow.shared.messages.limits import (
    BatchSize,
    Digest,
    FewItems,
    Finite,
    FunctionPath,
    Integer,
    Name,
    PositiveDurationS,
    PositiveGpus,
    PositiveIterations,
    Seed,
    Text,
    TimeS,
)


def _in_one_sentence(value: Any, validated: ValidatorFunctionWrapHandler) -> Any:
    """What is none of several kinds is said once, not once for each kind."""
    try:
        return validated(value)
    except ValidationError:
        raise PydanticCustomError(
            "scalar", "must be a truth value, a finite number of 64 bits, or text of at most 256 characters"
        ) from None


SCRIPT = "__main__"  # in the place of a class: a script whose loop is elastic
TORCHRUN = "__torchrun__"  # or one that starts as under torchrun: others join by starting it anew

Scalar = Annotated[bool | Integer | Finite | Annotated[str, FewItems], WrapValidator(_in_one_sentence)]


class JobClass(StrEnum):
    """Guarantees flow downwards only: a lower class never makes a higher one late."""

    SLO = "slo"  # hard deadline: promised at admission, then kept
    SOFT = "soft"  # deadline tried, never at the expense of a promise
    BEST_EFFORT = "best_effort"  # no deadline
    PADDING = "padding"  # no deadline, and only GPUs that nobody else would use

    @property
    def has_deadline(self) -> bool:
        return self in (JobClass.SLO, JobClass.SOFT)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCondition:
    """Ends the job early once `metric` reaches `value`; max_iterations bounds it anyway."""

    metric: Name
    comparison: Literal["<=", ">="]
    value: Finite

    def is_met(self, metrics: Mapping[str, float]) -> bool:
        seen = metrics.get(self.metric)
        if seen is None:
            return False
        return seen <= self.value if self.comparison == "<=" else seen >= self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One training job, as its user describes it (ElasticFlow, Table 1)."""

    training_function: FunctionPath  # "package.module:Class"; instead of a class SCRIPT or TORCHRUN
    code_digest: Digest = ""  # sha256 of the code archive in the object store; "" = importable on the nodes
    model_name: Annotated[str, FewItems] = ""  # names the throughput profile; "" = the function itself
    global_batch_size: BatchSize
    hyperparameters: Annotated[Mapping[str, Scalar], FewItems] = field(default_factory=dict[str, Scalar])
    max_iterations: PositiveIterations
    metric_conditions: Annotated[tuple[MetricCondition, ...], FewItems] = ()
    job_class: JobClass = JobClass.SLO
    deadline_s: TimeS | None = None  # absolute, seconds since 1970
    deadline_in_s: PositiveDurationS | None = None  # or relative to the first decision on it
    seed: Seed = 0
    description: Text = ""
    min_gpus: PositiveGpus = 1  # it does not run, or is not to run, on fewer
    max_gpus: PositiveGpus | None = None  # nor on more; the same as min_gpus: it is inelastic

    @property
    def entry(self) -> str:
        """The class, or SCRIPT, or TORCHRUN."""
        return self.training_function.partition(":")[2]

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of a script: its hyperparameters 1, 2, ..., as a shell counts them."""
        numbers = sorted((name for name in self.hyperparameters if name.isdecimal()), key=int)
        return tuple(str(self.hyperparameters[number]) for number in numbers)

    @property
    def gpu_range(self) -> GpuRange:
        """The sizes on which it may run."""
        return GpuRange.of(self.min_gpus, self.max_gpus)

    @property
    def profile_key(self) -> str:
        """Names the scaling curve that the job is planned on: what was measured, as far as its range goes."""
        return self.gpu_range.profile_key(self.measured_key)

    @property
    def measured_key(self) -> str:
        """Jobs with one key share what is measured: same code, hyperparameters and global batch."""
        if self.model_name:
            return f"{self.model_name}/b{self.global_batch_size}"
        settings = json.dumps(dict(self.hyperparameters), sort_keys=True)
        digest = hashlib.sha256(f"{self.code_digest}{settings}".encode()).hexdigest()[:8]
        return f"{self.training_function}#{digest}/b{self.global_batch_size}"

    def resolved_deadline_s(self, now_s: float) -> float | None:
        """The absolute deadline; a relative one counts from now_s."""
        if self.deadline_in_s is not None:
            return now_s + self.deadline_in_s
        return self.deadline_s
