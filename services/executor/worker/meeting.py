"""Where the workers of a generation meet, among them those of the one before, if that still trains.

Place 0 listens on a port that the system chose and the executors pass its address on, so no two jobs race for a port.
Everybody has a place: those of the new generation have their rank, those who will leave come after them.
"""
# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export them by the letter)

import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist

from services.executor.worker.channel import Channel
from services.executor.worker.groups import Group, PeerLost, retire
from services.executor.worker.meeting_store import GivenUp, MeetingStore
from services.executor.worker.plan import Plan, compare
from services.executor.worker.store_client import connect_store
from shared.messages.detection import DetectionTimes
from shared.messages.from_worker import RendezvousListening
from shared.messages.to_worker import Assignment, ChangeMembership

_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """To one meeting. wait_s: for all to come."""

    job_id: str
    generation: int
    place: int
    world_size: int  # of the new generation
    size: int  # of the meeting
    rendezvous: str
    advertise_host: str
    device: torch.device
    micro_batch_size: int  # of the new generation
    wait_s: float
    detection: DetectionTimes

    @property
    def stays(self) -> bool:
        """Its bearer is of the new generation."""
        return self.place < self.world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """Those who came. workers: of the new generation; None for whoever leaves, and for one that is alone.
    everyone: None where no state is to be handed over, and for one that is alone. goes_over_at: steps done then, as
    those who train expect."""

    workers: Group | None
    everyone: Group | None
    goes_over_at: int = 0

    @property
    def groups(self) -> tuple[Group, ...]:
        return tuple(group for group in (self.workers, self.everyone) if group is not None)

    def close(self) -> None:
        """It has come to nothing: a peer was lost, or the meeting given up."""
        for group in self.groups:
            group.close()
        retire(*self.groups)


def invitation(assignment: Assignment, device: torch.device) -> Invitation:
    """To a new worker: with others that are all new, or with some that train already."""
    return Invitation(
        job_id=assignment.job_id,
        generation=assignment.generation,
        place=assignment.rank,
        world_size=assignment.world_size,
        size=assignment.meeting_size or assignment.world_size,
        rendezvous=assignment.rendezvous,
        advertise_host=assignment.advertise_host,
        device=device,
        micro_batch_size=assignment.micro_batch_size,
        wait_s=assignment.detection.start_s,
        detection=assignment.detection,
    )


def changed(invited: Invitation, change: ChangeMembership) -> Invitation:
    """To one that trains, and can wait for as long as that takes."""
    return replace(
        invited,
        generation=change.generation,
        place=change.place,
        world_size=change.world_size,
        size=change.meeting_size,
        rendezvous=change.rendezvous,
        micro_batch_size=change.micro_batch_size,
        wait_s=invited.detection.collective_s,
    )


def open_rendezvous(invited: Invitation, channel: Channel) -> dist.TCPStore | None:
    """Place 0 of several opens the meeting place, early: the others' way there takes time."""
    if invited.place > 0 or invited.size == 1:
        return None
    store = dist.TCPStore(
        invited.advertise_host,
        port=0,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=invited.wait_s),
    )
    channel.send(RendezvousListening(generation=invited.generation, port=store.port))
    return store


def meet(
    invited: Invitation,
    plan: Plan,
    channel: Channel,
    store: dist.Store | None,
    *,
    hand_over: bool,
    goes_over_at: Callable[[], int] | None = None,
    given_up: threading.Event | None = None,
) -> Met:
    """Return once all are connected. Raises PeerLost if some do not come, or the meeting is given up; TrainingFailed if
    this worker is not like the one in place 0.

    plan: of this worker. hand_over: some bring the job's state, and know after which step they could do that.
    """
    if invited.size == 1:
        return Met(workers=None, everyone=None)
    given_up = given_up or threading.Event()
    try:
        place = dist.PrefixStore(
            f"{invited.job_id}/{invited.generation}", store or connect(invited, channel, given_up)
        )
        if invited.place == 0:
            place.set("plan", json.dumps(plan))
        patient = MeetingStore(place, given_up, wait_s=invited.wait_s)
        _wait_for_all(invited, patient)
        compare(plan, json.loads(patient.get("plan")))
        everyone = _group(invited, place, "everyone", invited.size, given_up) if hand_over else None
        together = invited.stays and invited.world_size > 1
        workers = _group(invited, place, "workers", invited.world_size, given_up) if together else None
        if goes_over_at is not None:
            place.set("goes over at", str(goes_over_at()))
        steps = int(patient.get("goes over at")) if hand_over else 0
    except (RuntimeError, queue.Empty) as error:
        raise PeerLost(f"the workers of this generation did not meet: {error}") from error
    return Met(workers=workers, everyone=everyone, goes_over_at=steps)


def connect(invited: Invitation, channel: Channel, given_up: threading.Event) -> dist.TCPStore:
    """Place 0 listens already where an address is known."""
    address = invited.rendezvous or _address(invited, channel, given_up)
    host, _, port = address.rpartition(":")
    return connect_store(
        host,
        int(port),
        within_s=invited.detection.connect_s,
        answer_s=invited.detection.missed_s,  # a machine that says nothing for longer is lost by then
        given_up=given_up,
    )


def _address(invited: Invitation, channel: Channel, given_up: threading.Event) -> str:
    give_up_s = time.monotonic() + invited.wait_s
    while time.monotonic() < give_up_s:
        with suppress(queue.Empty):
            return channel.receive_rendezvous(invited.generation, _LOOK_S)
        if given_up.is_set():
            raise GivenUp
    raise PeerLost("nobody has told where to meet")


def _wait_for_all(invited: Invitation, place: dist.Store) -> None:
    """With the timeout of a start; groups have a long one."""
    if place.add("arrived", 1) == invited.size:
        place.set("complete", "")
    place.wait(["complete"], timedelta(seconds=invited.wait_s))


def _group(invited: Invitation, place: dist.Store, name: str, size: int, given_up: threading.Event) -> Group:
    bind_to_host(invited.advertise_host)
    return Group(
        dist.PrefixStore(name, place),
        generation=invited.generation,
        rank=invited.place,
        size=size,
        device=invited.device if name == "workers" else torch.device("cpu"),
        timeout_s=invited.detection.collective_s,
        given_up=given_up,
    )


def bind_to_host(advertise_host: str) -> None:
    """Let gloo and NCCL use the network that the others see: a host's own name may mean its loopback.

    Unless the executor's environment names one. NCCL takes a name for the beginning of one, but for the sign.
    """
    address = socket.gethostbyname(advertise_host)
    for interface, addresses in psutil.net_if_addrs().items():
        if any(known.address == address for known in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
