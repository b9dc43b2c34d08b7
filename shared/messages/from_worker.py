"""What a worker says to its executor, up to the code with which it exits. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Literal

from annotated_types import Gt, Le
from pydantic import Strict

from shared.messages.limits import (
    DurationS,
    FewItems,
    Finite,
    Generation,
    Index,
    Iterations,
    Name,
    NumBytes,
    NumSamples,
    Rate,
    Sequence,
    Text,
)
from shared.messages.resize_timeline import ResizeTimeline

Port = Annotated[int, Strict(), Gt(0), Le(65_535)]
Metrics = Annotated[Mapping[Name, Finite], FewItems]


class ExitCode(IntEnum):
    """How a worker ended, for the executor to decide what is due. A signal is none of these."""

    DONE = 0  # finished, stopped or profiled, as asked
    FAILED = 70  # the job cannot go on; `Failed` says why
    PEER_LOST = 71  # another worker of the generation is gone: a new generation can go on
    SUPERSEDED = 72  # a newer generation of the job has written a checkpoint
    DEVICE_UNUSABLE = 73  # the node's fault; its log says what is wrong with the GPU
    OUT_OF_MEMORY = 74  # and its script with it; smaller micro-batches may fit: `Interrupted` has said so
    UNREADABLE = 75  # it could not read what its executor said; its log has the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousListening:
    """Rank 0 of this generation waits on this port of its advertise_host. Never sent by a worker that is alone."""

    generation: Generation
    port: Port


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """All workers of the generation have joined and hold the same state; the first step is `iteration`.

    resize: how it joined others that trained; None: it started with all others from the checkpoint of `iteration`, or
        from nothing.
    """

    iteration: Iterations
    resize: ResizeTimeline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """This worker has gone over to another generation, and has done its first step there. From now on it is this rank
    of it. Whoever leaves says nothing, and ends with `ExitCode.DONE`.

    iteration: the first of the new generation.
    """

    generation: Generation
    rank: Index
    iteration: Iterations
    resize: ResizeTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """A peer is gone, this worker is not: it holds the state after `iteration` steps, and waits to be told with whom to
    go on (`ChangeMembership`), or to stop: then it writes a checkpoint of it.

    micro_batch_size: samples that its memory does not hold at once, if this was the reason; 0: a peer is gone.
    """

    iteration: Iterations
    micro_batch_size: NumSamples = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """At most every 0.5 s. iterations_per_s: over recent steps, start-up left out; None: too few yet."""

    iteration: Iterations  # steps done
    iterations_per_s: Rate | None
    metrics: Metrics = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lagged:
    """A worker of the generation is slower than the others, for many steps in a row. From rank 0."""

    rank: Index
    slowdown: Rate  # its time for its own part of a step, by the median of the others'


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Instead of `Progressed` while no step ends: the process lives, its training may not."""

    iteration: Iterations
    seconds_since_progress: DurationS


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed:
    """A whole checkpoint of this many steps is on the disk. From rank 0.

    request: what it answers, 0 if nobody asked; only then its file, and how large that is, are told.
    """

    iteration: Iterations
    request: Sequence = 0
    num_bytes: NumBytes = 0
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCheckpointed:
    """The disk did not take the checkpoint that was asked for. The training goes on."""

    request: Sequence
    reason: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """Median speed of a pre-run at this number of workers. From rank 0."""

    iterations_per_s: Rate
    dataset_size: Iterations | None  # samples; None: only the script knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The termination condition is met and the trained model saved. From rank 0."""

    iteration: Iterations
    condition: Literal["max_iterations", "metric"]
    metrics: Metrics = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """This job cannot go on, at any size and on any node. From the rank that saw it."""

    error: Text
    traceback: Text = ""


FromWorker = (
    RendezvousListening
    | Started
    | Switched
    | Interrupted
    | Progressed
    | Lagged
    | Alive
    | Checkpointed
    | NotCheckpointed
    | Profiled
    | Finished
    | Failed
)
