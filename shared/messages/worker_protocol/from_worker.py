"""Messages of a worker to its executor, and its exit codes. Pure."""

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le
from pydantic import Strict

from elasticflow.shared.messages.limits import (
    MAX_ITERATIONS,
    DurationS,
    Generation,
    Index,
    Iterations,
    NumBytes,
    NumSamples,
    NumVirtualNodes,
    PositiveDurationS,
    Rate,
    Sequence,
    Text,
    WorkerMetrics,
)
from elasticflow.shared.messages.measurements import ResizeTimeline, SingleGpuStepTimes, VirtualNodeCount

Port = Annotated[int, Strict(), Gt(0), Le(65_535)]
PHASE_S = 5.0  # what a start does is reported once it has lasted so long: most starts are shorter
SLOWEST_PROFILE = 1e-9  # iterations per second; planners divide by the speed


class ExitCode(IntEnum):
    """How a worker ended without a signal. services/executor/decisions/crashes.py decides what follows."""

    DONE = 0  # finished, stopped or profiled, as requested
    FAILED = 70  # the job cannot continue; `Failed` has the reason
    PEER_LOST = 71  # another worker of the generation is gone: a new generation can continue
    SUPERSEDED = 72  # a newer generation of the job has written a checkpoint
    DEVICE_UNUSABLE = 73  # a fault of the node; the worker's log says which
    # a script ends with it; an earlier `Interrupted` reported that smaller micro-batches may fit
    OUT_OF_MEMORY = 74
    UNREADABLE = 75  # it could not read a message of its executor; its log has the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousListening:
    """Rendezvous rank 0 of this generation listens on this port of its advertise_host. A single worker sends none."""

    generation: Generation
    port: Port


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """All workers of the generation have met and hold the same state; the first step is `iteration`.

    resize: how this worker joined workers that trained; None: all started from the checkpoint of `iteration`, or from
        nothing.
    lost_checkpoints: as in `GenerationStarted`.
    """

    iteration: Iterations
    resize: ResizeTimeline | None = None
    lost_checkpoints: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """This worker has switched to another generation, has this rank there, and has done its first step.

    A leaving worker sends none and ends with `ExitCode.DONE`. iteration: the first of the new generation.
    """

    generation: Generation
    rank: Index
    iteration: Iterations
    resize: ResizeTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The worker has rolled back to the step boundary after `iteration` steps: it lost a peer, or exceeded its memory.

    It waits for `PrepareSwitch`, or for `StopAtBoundary` and then writes a checkpoint.
    micro_batch_size: samples that exceeded the memory; 0: a peer is gone.
    """

    iteration: Iterations
    micro_batch_size: NumSamples = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """A worker reports its steps, at most every 0.5 s.

    iterations_per_s: over recent steps, without the start; None: too few steps so far.
    metrics: those known at this iteration, of the step before if no condition of the job needs them.
    """

    iteration: Iterations  # steps done
    iterations_per_s: Rate | None
    metrics: WorkerMetrics = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lagged:
    """A worker of the generation has been slower than its peers for many steps in a row. From rank 0.

    num_virtual_nodes: as in `WorkerLagged`.
    """

    rank: Index
    slowdown: Rate  # its time for its own part of a step, divided by its peers' median
    num_virtual_nodes: NumVirtualNodes = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something about the job's code that its user should know; it trains on. That of rank 0 reaches the ledger.

    is_own: it is about this worker, as where it hangs, so that it does so from any rank.
    """

    warning: Text
    is_own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Instead of `Progressed` while no step ends: the process runs, its training may hang.

    phase: as in `JobWarned`, once it has lasted for some seconds.
    """

    iteration: Iterations
    seconds_since_progress: DurationS
    phase: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten:
    """A complete checkpoint of so many steps is on the disk. From rank 0.

    request: that of `WriteCheckpoint`; 0: the checkpoint was not requested, and num_bytes and file are not set.
    """

    iteration: Iterations
    request: Sequence = 0
    num_bytes: NumBytes = 0
    file: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """The requested checkpoint could not be written. The training continues."""

    request: Sequence
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """Median throughput of a profiling run with this number of workers. From rank 0.

    dataset_size: samples; None: unknown, in a script.
    single_gpu, one_virtual_node_s, virtual_nodes: as in `ThroughputMeasured`, if the assignment asked for them.
    """

    iterations_per_s: Annotated[Rate, Ge(SLOWEST_PROFILE)]
    dataset_size: Iterations | None
    single_gpu: SingleGpuStepTimes | None = None
    one_virtual_node_s: PositiveDurationS | None = None
    virtual_nodes: VirtualNodeCount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The termination condition is met, and the trained model is saved. From rank 0."""

    iteration: Iterations
    condition: Literal["max_iterations", "metric"]
    metrics: WorkerMetrics = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """This job cannot continue, on any number of GPUs or any node. From the worker that found out.

    whole_traceback: with all frames of the engine; "" if `traceback` has them.
    """

    error: Text
    traceback: Text = ""
    whole_traceback: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The process ends now, since the job's code demands it, e.g. by os._exit(). It counts as crashed."""

    reason: Text


FromWorker = (
    RendezvousListening
    | Started
    | Switched
    | Interrupted
    | Progressed
    | Lagged
    | Warned
    | Alive
    | CheckpointWritten
    | CheckpointFailed
    | Profiled
    | Finished
    | Failed
    | Ending
)


# --- job files -----------------------------------------------------------------------------------------
# Names within the folder of a job's checkpoints, on which its workers and their executor agree. Pure.

ARTIFACT_FOLDER = "artifacts"  # files of the job that are stored for its user
ARTIFACT_VARIABLE = "EF_ARTIFACTS"  # its path, for users' code
WORKING_FOLDER = "files"  # in which its processes work: a copy of what was sent, and what they write there
INPUTS_FILE = "inputs.json"  # names what was copied: {"code_digest": ..., "files": {path: [bytes, changed_at_ns]}}
MODEL_FOLDER = "model"
_MODEL_FILE = re.compile(r"i([0-9]{14})(?:-([0-9a-f]{64}))?\.pt")


def model_file_name(iteration: int, digest: str) -> str:
    """The name of the file of the model after so many steps. digest: the SHA-256 of its bytes."""
    return f"i{iteration:014d}-{digest}.pt"


def iteration_of_model(file_name: str) -> int | None:
    """The iteration in the name of a model file; None if it is no such file. Users' code may give a file any name."""
    found = _MODEL_FILE.fullmatch(file_name)
    return int(found[1]) if found and int(found[1]) <= MAX_ITERATIONS else None


def digest_of_model(file_name: str) -> str:
    """The SHA-256 that the file had when it was written; "" if its name tells none."""
    found = _MODEL_FILE.fullmatch(file_name)
    return (found[2] or "") if found else ""
