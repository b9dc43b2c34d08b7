"""The workers of one generation: how they meet, agree at each step, and notice that one is lost.

Rank 0 listens on a port that the system chose and the executors pass its address on, so no two jobs race for
a port. Gradients go through NCCL on GPUs and gloo on CPUs; everything that is agreed upon goes through gloo, in the
order of virtual nodes, so that all workers compute the same bits from it.

gloo tells at once that a peer is gone. NCCL may wait for it inside the GPU, where nothing here can hear of it: such a
worker is ended by its executor, when the ledger says that the generation is broken, or by NCCL after the collective
timeout.
"""
# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export them by the letter)

import os
import queue
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from services.executor.worker.channel import Channel
from services.executor.worker.pacing import Pacer
from services.executor.worker.summation_tree import tree_sum
from services.executor.worker.virtual_nodes import VirtualNodes
from shared.errors import Retry
from shared.messages.worker_channel import Assignment, RendezvousListening


@dataclass(eq=False)
class PeerLost(Retry):
    """Another worker of the generation is gone: the next generation goes on from the checkpoint."""

    reason: str

    SENTENCE: ClassVar[str] = "{reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What all workers know after a step, the same bits everywhere."""

    stop: bool  # at least one was asked to
    means: tuple[float, ...]  # over the global batch


def open_rendezvous(assignment: Assignment, channel: Channel) -> dist.Store | None:
    """Rank 0 of several opens the meeting place, early: the others' way there takes time."""
    if assignment.rank > 0 or assignment.world_size == 1:
        return None
    store = dist.TCPStore(
        assignment.advertise_host,
        port=0,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=assignment.start_timeout_s),
    )
    channel.send(RendezvousListening(port=store.port))
    return store


def join(
    assignment: Assignment,
    channel: Channel,
    store: dist.Store | None,
    pacer: Pacer,
    virtual_nodes: VirtualNodes,
) -> "Membership":
    """Return once all workers of the generation are connected. Raises PeerLost if some do not come."""
    if assignment.world_size > 1:
        try:
            meet(assignment, store or _connect(assignment, channel))
        except (RuntimeError, queue.Empty) as error:
            raise PeerLost(f"the workers of this generation did not meet: {error}") from error
    return Membership(assignment, pacer, virtual_nodes)


class Membership:
    """One worker among those of its generation. A worker that is alone talks to nobody."""

    def __init__(self, assignment: Assignment, pacer: Pacer, virtual_nodes: VirtualNodes) -> None:
        self.rank = assignment.rank
        self.world_size = assignment.world_size
        self._pacer = pacer
        self._blocks = [virtual_nodes.block(rank, self.world_size) for rank in range(self.world_size)]
        self._weights = [virtual_nodes.weight(virtual_node) for virtual_node in range(virtual_nodes.count)]

    def wrap(self, model: nn.Module, device: torch.device, *, find_unused_parameters: bool) -> nn.Module:
        """The model with rank 0's state, its gradients averaged over the global batch by plain all-reduces."""
        if self.world_size == 1:
            return model
        with noticing_lost_peers():
            parallel = DistributedDataParallel(
                model,
                device_ids=[device] if device.type == "cuda" else None,
                find_unused_parameters=find_unused_parameters,
            )
        parallel.register_comm_hook(None, self.weighted_sum)
        return parallel

    def share_state(self, model: nn.Module) -> None:
        """Rank 0's parameters and buffers, on every rank: models that were made with luck may differ."""
        if self.world_size > 1:
            with noticing_lost_peers():
                for tensor in (*model.parameters(), *model.buffers()):
                    dist.broadcast(tensor.data, src=0)

    def agree(self, *, stop: bool, rows: Sequence[Sequence[float]]) -> Agreement:
        """Meet at the step boundary: once a step. rows: as many numbers for each virtual node computed here."""
        block = self._blocks[self.rank]
        width = len(rows[0]) if rows else 0
        longest = max(map(len, self._blocks))
        mine = torch.zeros(1 + longest * width, dtype=torch.float64)
        mine[0] = stop
        mine[1 : 1 + len(block) * width] = torch.tensor(
            [row for row, _ in zip(rows, block, strict=False)]
        ).flatten()
        everyone = [mine]
        if self.world_size > 1:
            everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
            with noticing_lost_peers():
                dist.all_gather(everyone, mine)
        all_rows = [
            row
            for theirs, block in zip(everyone, self._blocks, strict=True)
            for row in theirs[1:].view(longest, width)[: len(block)].tolist()
        ]
        means = tuple(map(self._mean, zip(*all_rows, strict=True)))
        return Agreement(stop=any(bool(theirs[0]) for theirs in everyone), means=means)

    def _mean(self, values: Sequence[float]) -> float:
        return tree_sum([weight * value for weight, value in zip(self._weights, values, strict=True)])

    def from_rank_0(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.world_size == 1:
            return value
        carrier = [value]
        with noticing_lost_peers():
            dist.broadcast_object_list(carrier, src=0, device=torch.device("cpu"))
        return carrier[0]

    def leave(self) -> None:
        """Part once everyone knows of the end: who closes its sockets first may cut off the last words."""
        if self.world_size > 1:
            with suppress(PeerLost):  # it has left already, with the same knowledge
                self.agree(stop=True, rows=())

    def weighted_sum(self, _: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """DDP hook: each worker's mean gradient counts by its part of the global batch.

        DDP's own mean of means is wrong as soon as the parts differ in size.
        """
        self._pacer.pace()
        gradients = bucket.buffer().mul_(sum(self._weights[v] for v in self._blocks[self.rank]))
        work = dist.all_reduce(gradients, async_op=True)
        assert work is not None
        return work.get_future().then(lambda summed: summed.value()[0])


def is_communication_error(error: BaseException) -> bool:
    """Whether a collective failed. gloo has no exception type of its own, only its place in the text."""
    return isinstance(error, dist.DistError) or "third_party/gloo" in str(error)


@contextmanager
def noticing_lost_peers() -> Iterator[None]:
    """Raises PeerLost for a collective that failed in here."""
    try:
        yield
    except RuntimeError as error:
        if is_communication_error(error):
            raise PeerLost(f"a collective failed: {error}") from error
        raise


def _connect(assignment: Assignment, channel: Channel) -> dist.Store:
    address = assignment.rendezvous or channel.receive_rendezvous(assignment.start_timeout_s)
    host, _, port = address.rpartition(":")
    return dist.TCPStore(
        host, int(port), is_master=False, timeout=timedelta(seconds=assignment.start_timeout_s)
    )


def meet(assignment: Assignment, store: dist.Store) -> None:
    """Wait for all with the short timeout of the start; only then build groups with the long one."""
    place = dist.PrefixStore(f"{assignment.job_id}/{assignment.generation}", store)
    if place.add("arrived", 1) == assignment.world_size:
        place.set("complete", "")
    place.wait(["complete"], timedelta(seconds=assignment.start_timeout_s))
    _bind_to_host(assignment.advertise_host)
    dist.init_process_group(
        "gloo" if assignment.device == "cpu" else "cpu:gloo,cuda:nccl",
        store=place,
        rank=assignment.rank,
        world_size=assignment.world_size,
        timeout=timedelta(seconds=assignment.collective_timeout_s),
    )


def _bind_to_host(advertise_host: str) -> None:
    """Let gloo and NCCL use the network that the others see: a host's own name may mean its loopback.

    Unless the executor's environment names one. NCCL takes a name for the beginning of one, but for the sign.
    """
    address = socket.gethostbyname(advertise_host)
    for interface, addresses in psutil.net_if_addrs().items():
        if any(known.address == address for known in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
