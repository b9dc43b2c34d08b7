"""What is measured of a job's profile, and that it cannot be measured on a GPU type."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from elasticflow.shared.messages.limits import (
    Generation,
    GpuType,
    Iterations,
    NumGpus,
    PositiveDurationS,
    ProfileKey,
    Rate,
    Text,
    TimeS,
    Token,
)
from elasticflow.shared.messages.single_gpu_step_times import SingleGpuStepTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingFailed:
    """The job cannot be measured on GPUs of this type, but other types are left. From the executor or the monitor.

    gpu_type: as recorded. On the last type the event is `JobFailed`, which has the same causes.
    """

    VERSION: ClassVar[int] = 1
    job_id: Token
    generation: Generation
    gpu_type: GpuType
    error: Text
    node_id: Token | None = None
    incarnation: Token | None = None
    progressed_at_s: TimeS | None = None
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputMeasured:
    """The throughput of a profile on num_gpus. From the executor (in a profiling run) or the monitor (in training).

    dataset_size: samples; known after a profiling run.
    single_gpu: of a profiling run on one GPU, in a pool with several GPU types.
    one_virtual_node_s: of one on several GPUs there: the median step with one virtual node on each; None: not measured.
    """

    VERSION: ClassVar[int] = 1
    profile_key: ProfileKey
    num_gpus: NumGpus
    iterations_per_s: Rate
    dataset_size: Iterations | None = None
    single_gpu: SingleGpuStepTimes | None = None
    one_virtual_node_s: PositiveDurationS | None = None
    job_id: Token
    generation: Generation
    source: Literal["profile", "training"]
    at_s: TimeS
    node_id: Token | None = None  # of the executor
