"""The rendezvous of a generation's workers, including those of the previous generation that still train.

Rank 0 of the rendezvous listens on a port that the system chose, and the executors forward its address, so no two jobs
race for a port. The workers of the new generation have their rank as rendezvous rank; leaving workers come after them.
"""

# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export them by the letter)

import json
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.group.compatibility_digest import CompatibilityDigest, require_compatible
from elasticflow.services.executor.worker.group.groups import Group, release_later
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.rendezvous_store import (
    RendezvousAborted,
    RendezvousStore,
    connect_store,
    listening_store,
)
from elasticflow.services.executor.worker.group.tcp_connections import bind_to_host, derived
from elasticflow.services.executor.worker.group.transport import Membership
from elasticflow.services.executor.worker.process.channel import ExecutorLink
from elasticflow.shared.messages.timeouts import FailureTimeouts
from elasticflow.shared.messages.worker_protocol.from_worker import RendezvousListening
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan, PrepareSwitch

_POLL_S = 0.1
_GANG, _TRANSFER, _TRAINING = "gang", "transfer", "training"  # groups


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousSpecification:
    """The specification of one rendezvous, for one worker. wait_s: for all to arrive.

    gang_size: rendezvous ranks r * gang_size + p are the positions p of gang r, whose workers hold a model together.
    """

    job_id: str
    plan: GenerationPlan
    rendezvous_rank: int
    advertise_host: str
    device: torch.device
    wait_s: float
    timeouts: FailureTimeouts
    gang_size: int = 1

    @property
    def stays(self) -> bool:
        """Whether this worker belongs to the new generation."""
        return self.rendezvous_rank < self.plan.world_size

    @property
    def rank(self) -> int:
        """Among the workers of its position: the number of its gang."""
        return self.rendezvous_rank // self.gang_size

    @property
    def position(self) -> int:
        """In its gang."""
        return self.rendezvous_rank % self.gang_size

    @property
    def num_staying(self) -> int:
        """Workers of its position in the new generation."""
        return self.plan.world_size // self.gang_size

    @property
    def num_meeting(self) -> int:
        """Workers of its position in the rendezvous."""
        return self.plan.num_in_rendezvous // self.gang_size


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousResult:
    """Groups of a completed rendezvous; all are None for a worker that is alone.

    training_group: of the new generation; None for a leaving worker. transfer_group: of all workers; None if no state
    is transferred. Both have the workers of one position in all gangs. gang_group: of a new gang, for its whole life.
    switch_iteration: steps done at the switch, as training workers expect.
    """

    training_group: Group | None
    transfer_group: Group | None
    switch_iteration: int = 0
    gang_group: Group | None = None

    @property
    def groups(self) -> tuple[Group, ...]:
        return tuple(group for group in (self.training_group, self.transfer_group) if group is not None)

    def close(self) -> None:
        """Close the groups after the loss of a peer or an abort."""
        for group in self.groups:
            group.close()
        release_later(*self.groups)


def rendezvous_specification(assignment: Assignment, device: torch.device) -> RendezvousSpecification:
    """The specification of a new worker's rendezvous, with other new workers or with some that train already."""
    return RendezvousSpecification(
        job_id=assignment.job_id,
        plan=assignment.plan,
        rendezvous_rank=assignment.rank,
        advertise_host=assignment.advertise_host,
        device=device,
        wait_s=assignment.timeouts.rendezvous_wait_s,
        timeouts=assignment.timeouts,
        gang_size=assignment.spec.gang_size,
    )


def switch_specification(specification: RendezvousSpecification, command: PrepareSwitch) -> RendezvousSpecification:
    """The specification for a worker that trains, and so can wait longer."""
    assert command.rendezvous_rank % specification.gang_size == specification.position, "a worker keeps its rows"
    return replace(
        specification,
        plan=command.plan,
        rendezvous_rank=command.rendezvous_rank,
        wait_s=specification.timeouts.switch_wait_s,
    )


def open_rendezvous(specification: RendezvousSpecification, channel: ExecutorLink) -> dist.TCPStore | None:
    """Open the store on rendezvous rank 0, early: forwarding its address takes time. None on other ranks."""
    if specification.rendezvous_rank > 0 or specification.plan.num_in_rendezvous == 1:
        return None
    store = listening_store(specification.advertise_host, wait_s=specification.wait_s)
    channel.send(RendezvousListening(generation=specification.plan.generation, port=store.port))
    return store


def join_rendezvous(
    specification: RendezvousSpecification,
    digest: CompatibilityDigest,
    channel: ExecutorLink,
    store: dist.Store | None,
    *,
    transfer_state: bool,
    switch_iteration: Callable[[], int] | None = None,
    before_arrival: Callable[[RendezvousStore], None] | None = None,
    aborted: threading.Event | None = None,
    meets_gang: bool = False,
) -> RendezvousResult:
    """Return once all workers are connected. meets_gang: this worker starts, and its gang with it.

    transfer_state: some workers hold the job's state. switch_iteration: given by workers that train. before_arrival:
    tells workers that join what they need before, or prepares such a worker. Raises PeerLost if some workers do not
    arrive or the rendezvous is aborted; TrainingFailed if this worker is incompatible.
    """
    if specification.plan.num_in_rendezvous == 1:
        return RendezvousResult(training_group=None, transfer_group=None)
    aborted = aborted or threading.Event()
    # Workers with different counts would compute some samples twice and others never.
    digest = digest | {"virtual nodes by rank": str(specification.plan.virtual_nodes_by_rank)}
    try:
        store = dist.PrefixStore(
            f"{specification.job_id}/{specification.plan.generation}",
            store or connect(specification, channel, aborted),
        )
        abortable = RendezvousStore(store, aborted, wait_s=specification.wait_s, secret=specification.plan.secret)
        if specification.rendezvous_rank == 0:
            abortable.set("compatibility digest", json.dumps(digest))
        if before_arrival is not None:
            before_arrival(abortable)
        _wait_for_all(specification, abortable)
        require_compatible(digest, json.loads(abortable.get("compatibility digest")))
        meet = partial(_group, specification, store, aborted)
        gang_group = meet(_GANG) if meets_gang and specification.gang_size > 1 else None
        transfer_group = meet(_TRANSFER) if transfer_state and specification.num_meeting > 1 else None
        training_group = (
            meet(_TRAINING, may_connect_later=transfer_state)
            if specification.stays and specification.num_staying > 1
            else None
        )
        if switch_iteration is not None:
            abortable.set("switch iteration", str(switch_iteration()))
        iteration = int(abortable.get("switch iteration")) if transfer_state else 0
    except (RuntimeError, queue.Empty) as error:
        raise PeerLost(f"the rendezvous of generation {specification.plan.generation} failed: {error}") from error
    return RendezvousResult(
        training_group=training_group,
        transfer_group=transfer_group,
        switch_iteration=iteration,
        gang_group=gang_group,
    )


def connect(specification: RendezvousSpecification, channel: ExecutorLink, aborted: threading.Event) -> dist.TCPStore:
    """Connect to the store of rendezvous rank 0, which listens before its address is known."""
    address = specification.plan.rendezvous or _address(specification, channel, aborted)
    host, _, port = address.rpartition(":")
    return connect_store(
        host,
        int(port),
        within_s=specification.timeouts.connect_timeout_s,
        reply_timeout_s=specification.timeouts.loss_confirmation_s,  # a machine silent for longer is confirmed lost
        aborted=aborted,
    )


def _address(specification: RendezvousSpecification, channel: ExecutorLink, aborted: threading.Event) -> str:
    deadline_s = time.monotonic() + specification.wait_s
    while time.monotonic() < deadline_s:
        with suppress(queue.Empty):
            return channel.receive_rendezvous_address(specification.plan.generation, _POLL_S)
        if aborted.is_set():
            raise RendezvousAborted
    raise PeerLost(f"timed out after {specification.wait_s:.0f} s waiting for the rendezvous address")


def _wait_for_all(specification: RendezvousSpecification, store: dist.Store) -> None:
    """Wait for all workers with the timeout of a start; that of a group is longer."""
    if store.add("arrived", 1) == specification.plan.num_in_rendezvous:
        store.set("complete", "")
    store.get("complete")


def _group(
    specification: RendezvousSpecification,
    store: dist.Store,
    aborted: threading.Event,
    kind: str,
    *,
    may_connect_later: bool = False,
) -> Group:
    """kind: _GANG, or one of those between the workers of one position, which have no gang or are of several."""
    name, rank, size = kind, specification.rank, specification.num_staying
    if kind == _TRANSFER:
        size = specification.num_meeting
    if kind == _GANG:
        name, rank, size = f"{kind} {specification.rank}", specification.position, specification.gang_size
    elif specification.gang_size > 1:
        name = f"{kind} of position {specification.position}"
    bind_to_host(specification.advertise_host)
    return Group(
        Membership(
            dist.PrefixStore(name, store),
            rank=rank,
            size=size,
            timeout_s=specification.timeouts.collective_timeout_s,
            aborted=aborted,
            secret=derived(specification.plan.secret, name),
        ),
        generation=specification.plan.generation,
        device=None if kind == _TRANSFER else specification.device,
        may_connect_later=may_connect_later,
    )
