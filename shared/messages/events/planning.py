"""Decisions of the allocator, of placement and of the operator; and any decision as one message."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple

from annotated_types import Len

from elasticflow.shared.messages.commands import Command, id_of
from elasticflow.shared.messages.events.admission import AdmissionEvent
from elasticflow.shared.messages.gpus import GpuId, ShareSchedule
from elasticflow.shared.messages.limits import (
    ChainDigest,
    Digest,
    Generation,
    GpuType,
    NumGpus,
    ProfileKey,
    Rate,
    Sequence,
    TimeS,
    Token,
    VirtualNodesByRank,
)
from elasticflow.shared.messages.pool_config import PoolConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationDecided:
    """The number of GPUs of each job from now on; jobs that are not named get none. From the allocator.

    valid_until_s: when the planned shares change next; None if they do not.
    planned: schedules of promised jobs, if they differ from the recorded ones. If planning anew misses a deadline, the
        recorded schedules still keep it. Empty if they do not fit into one message.
    probes: the job that starts a scaling probe: its share is a number of GPUs without a measurement.
    profiled_on: the GPU types of profiling runs, by job, where a pool has several types.
    virtual_nodes_by_type: of each job that idle GPUs of other types join: by type, the virtual nodes of each of its
        GPUs there. num_gpus_by_job counts its GPUs of its own type only.
    lent_until_s: of each profiling run for which promises lend GPUs: until when they do without. An instant in the past
        stays until its job is measured: no further GPUs are lent to it.
    """

    VERSION: ClassVar[int] = 1
    num_gpus_by_job: Mapping[Token, NumGpus]
    valid_until_s: TimeS | None
    planned: Mapping[Token, ShareSchedule] = field(default_factory=dict[str, ShareSchedule])
    probes: Token | None = None
    profiled_on: Mapping[Token, GpuType] = field(default_factory=dict[str, str])
    virtual_nodes_by_type: Mapping[Token, Mapping[GpuType, VirtualNodesByRank]] = field(
        default_factory=dict[str, Mapping[str, tuple[int, ...]]]
    )
    lent_until_s: Mapping[Token, TimeS] = field(default_factory=dict[str, float])
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileCompleted:
    """The scaling curve of a profile is complete enough for promises. From the allocator.

    measured_to: the most GPUs of the profiling run, if more might improve the throughput; else None.
    """

    VERSION: ClassVar[int] = 1
    profile_key: ProfileKey
    iterations_per_s: Mapping[NumGpus, Rate]
    measured_to: NumGpus | None = None
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedJob:
    """The GPUs of one generation of a job; rank r runs on gpus[r]. No GPUs: the job is suspended.

    virtual_nodes_by_rank: virtual nodes of the worker on each GPU; empty: as even as possible.
    num_added_gpus: the last GPUs, of other types than the job's; they are no part of its share.
    predicted_speedup: because GPUs of its share are slow, they have fewer virtual nodes, or are not among its GPUs. So
        it makes so many times as many steps as with even parts on its whole share. 0: no GPU counts as slow.
    """

    job_id: Token
    generation: Generation
    gpus: Annotated[tuple[GpuId, ...], Len(max_length=4096)]
    virtual_nodes_by_rank: VirtualNodesByRank = ()
    num_added_gpus: NumGpus = 0
    predicted_speedup: Rate = 0.0

    def __post_init__(self) -> None:
        if self.virtual_nodes_by_rank and len(self.virtual_nodes_by_rank) != len(self.gpus):
            raise ValueError("must have no virtual_nodes_by_rank, or one number for each of its gpus")
        if self.virtual_nodes_by_rank and not any(self.virtual_nodes_by_rank):
            raise ValueError("must have a virtual node on at least one of its gpus")
        if self.num_added_gpus > len(self.gpus):
            raise ValueError("must not have more num_added_gpus than gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDecided:
    """New generations of the jobs whose GPUs change; all others keep theirs. From placement.

    migrated: moved although their number of GPUs stays. needs_other_plan: a schedule has no room for that, so the
    allocator decides anew.
    """

    VERSION: ClassVar[int] = 1
    placements: tuple[PlacedJob, ...]
    migrated: tuple[Token, ...] = ()
    needs_other_plan: bool = False
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfigured:
    """The configuration of the pool from now on. From the operator: `eflow up` or `eflow configure`."""

    VERSION: ClassVar[int] = 1
    config: PoolConfig
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndAnnounced:
    """A node that is there will end at another time than it said. From the operator: `eflow drain`.

    until_s: its end from now on; None: none is known any more. incarnation: of the node. Later incarnations keep an end
    that is ahead, unless they name an earlier one: an executor was started again on the same machine.
    """

    VERSION: ClassVar[int] = 1
    node_id: Token
    incarnation: Token
    until_s: TimeS | None
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrainStarted:
    """A node ends within `PoolConfig.leave_s`: its GPUs no longer count, and its jobs move. From the allocator."""

    VERSION: ClassVar[int] = 1
    node_id: Token
    incarnation: Token
    at_s: TimeS


PlanEvent = (
    AdmissionEvent
    | AllocationDecided
    | ProfileCompleted
    | PlacementDecided
    | PoolConfigured
    | NodeEndAnnounced
    | NodeDrainStarted
)


class QueuePosition(NamedTuple):
    """The place of a command in the work queue. A queue that is made anew counts from 1 again, at other times."""

    sequence: Sequence
    stored_at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDecided:
    """One decision as one message: its service, its input, its time, its commands and its events.

    Services append it to the pool's plan subject by compare-and-set, so decisions are totally ordered.
    based_on: the ledger sequence up to which the service had folded; now_s: its clock at the decision.
    A replay folds to based_on, decides again at now_s and compares the events.
    queue_positions: of each command, in order: a command that is delivered again is not decided again. Empty if the
        commands come from no work queue.
    chain: the digest of all messages up to based_on (shared/state/ledger_chain.py); empty in decisions of operators.
    """

    VERSION: ClassVar[int] = 1
    service: Token
    based_on: Sequence
    now_s: TimeS
    commands: tuple[Command, ...] = ()
    queue_positions: tuple[QueuePosition, ...] = ()
    chain: ChainDigest = ""
    events: tuple[PlanEvent, ...]

    def queue_sequences(self) -> dict[str, int]:
        """The queue sequence of a job's or load's only command, by its name; empty if the decision has no positions."""
        names = list(map(id_of, self.commands))
        times = Counter(names)
        positions = zip(names, self.queue_positions, strict=False)
        return {name: position.sequence for name, position in positions if times[name] == 1}


# --- epochs --------------------------------------------------------------------------------------------
# What the ledger says about its snapshots: those of its epochs, and the monitor's own (docs/adr/0061, 0078).


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegan:
    """All messages up to based_on are in archives, and a reader may start after them. From the operator.

    chain: the digest of all these messages (shared/state/ledger_chain.py). snapshot: the SHA-256 of the state there, as
    it is stored. fold: FOLD of the program that made it; a later one continues from this state.
    It says what others have decided, so it changes no state.
    """

    VERSION: ClassVar[int] = 1
    based_on: Sequence
    chain: ChainDigest
    snapshot: Digest
    fold: Sequence
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSaved:
    """A service may start from the state after message based_on. From the monitor.

    snapshot: the SHA-256 of the state, as it is stored. shape: of fold and state, for readers of the same one.
    It says what others have decided, so it changes no state.
    """

    VERSION: ClassVar[int] = 1
    based_on: Sequence
    snapshot: Digest
    shape: Token
    at_s: TimeS
