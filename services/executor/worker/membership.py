"""One worker among those of its generation: what they agree on at each step, and the fast mode's sums.

Everything that is agreed upon goes in the order of virtual nodes, so that all workers compute the same bits from it.
"""
# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its buckets, but does not export them by the letter)

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from services.executor.worker.groups import Group, PeerLost
from services.executor.worker.pacing import Pacer
from services.executor.worker.reducer_group import ReducerGroup
from services.executor.worker.summation_tree import tree_sum
from services.executor.worker.virtual_nodes import VirtualNodes

_HEAD = 5  # numbers of a worker in an agreement, before those of its virtual nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What all workers know after a step, the same bits everywhere."""

    stop: bool  # at least one was asked to
    over: bool  # at least one training function wants no more steps
    switch: bool  # all are ready for the same new generation
    same: bool  # all have the same fingerprint
    own_s: tuple[float, ...]  # by rank: time for its own part of the step, for as many samples
    means: tuple[float, ...]  # over the global batch


class Membership:
    """group: None for a worker that is alone and talks to nobody."""

    def __init__(self, group: Group | None, pacer: Pacer, virtual_nodes: VirtualNodes) -> None:
        self.group = group
        self.rank, self.world_size = (group.rank, group.size) if group else (0, 1)
        self.virtual_nodes = virtual_nodes
        self.computed = virtual_nodes.computed_by(self.rank, self.world_size)
        self._part_computed = sum(micro_batch.weight for micro_batch in self.computed)
        self._pacer = pacer
        self._blocks = [virtual_nodes.block(rank, self.world_size) for rank in range(self.world_size)]
        self._weights = [virtual_nodes.weight(virtual_node) for virtual_node in range(virtual_nodes.count)]
        self._shares = [sum(self._weights[v] for v in block) for block in self._blocks]

    def wrap(self, model: nn.Module, device: torch.device, *, find_unused_parameters: bool) -> nn.Module:
        """The model with rank 0's state, its gradients averaged over the global batch by plain all-reduces."""
        if self.group is None:
            return model
        buffers = [name for name, _ in model.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, buffers)
        on_cpu = device.type == "cpu"
        parallel = DistributedDataParallel(
            model,
            device_ids=None if on_cpu else [device],
            process_group=ReducerGroup(self.group) if on_cpu else self.group.process_group,
            init_sync=False,
            find_unused_parameters=find_unused_parameters,
        )
        self.group.broadcast_all([parameter.detach() for parameter in model.parameters()], source=0)
        # Nobody can give up torch's own sums where gloo waits in vain, and a mean of means is wrong for uneven parts.
        if on_cpu or len(set(self._shares)) > 1:
            parallel.register_comm_hook(self.group, self.weighted_sum)
        return parallel

    def share_buffers(self, model: nn.Module) -> None:
        """Rank 0's, on every rank."""
        if self.group is not None and (buffers := list(model.buffers())):
            self.group.broadcast_all(buffers, source=0)

    def agree(
        self,
        *,
        stop: bool,
        over: bool,
        ready_for: int,
        fingerprint: int,
        own_s: float,
        rows: Sequence[Sequence[float]],
    ) -> Agreement:
        """Meet at the step boundary: once a step.

        own_s: how long this worker took for its part before it met the others.
        ready_for: the generation to which this worker could go over now, 0 if there is none.
        rows: as many numbers for each micro-batch computed here.
        """
        block = self._blocks[self.rank]
        rows = self._by_virtual_node(rows)
        width = len(rows[0]) if rows else 0
        longest = max(map(len, self._blocks))
        own_s /= self._part_computed
        mine = [stop, over, ready_for, fingerprint, own_s, *chain.from_iterable(rows[: len(block)])]
        everyone = self._all_gather(mine, length=_HEAD + longest * width)
        all_rows = [
            theirs[_HEAD + i * width : _HEAD + (i + 1) * width]
            for theirs, block in zip(everyone, self._blocks, strict=True)
            for i in range(len(block))
        ]
        return Agreement(
            stop=any(theirs[0] for theirs in everyone),
            over=any(theirs[1] for theirs in everyone),
            switch=ready_for > 0 and all(theirs[2] == ready_for for theirs in everyone),
            same=all(theirs[3] == fingerprint for theirs in everyone),
            own_s=tuple(theirs[4] for theirs in everyone),
            means=tuple(map(self._mean, zip(*all_rows, strict=True))),
        )

    def _all_gather(self, mine: list[float], *, length: int) -> list[list[float]]:
        """Everybody's numbers, by rank, with zeros behind them up to a length that all have in common."""
        if self.group is None:
            return [mine]
        padded = torch.tensor(mine + [0.0] * (length - len(mine)), dtype=torch.float64)
        return [theirs.tolist() for theirs in self.group.all_gather(padded)]

    def _by_virtual_node(self, rows: Sequence[Sequence[float]]) -> list[list[float]]:
        """Means over each one's micro-batches, which come one after another."""
        means: dict[int, list[float]] = {}
        for micro_batch, row in zip(self.computed, rows, strict=True):
            part = micro_batch.weight / self._weights[micro_batch.virtual_node]
            before = means.get(micro_batch.virtual_node, [0.0] * len(row))
            means[micro_batch.virtual_node] = [
                mean + part * value for mean, value in zip(before, row, strict=True)
            ]
        return list(means.values())

    def _mean(self, values: Sequence[float]) -> float:
        return tree_sum([weight * value for weight, value in zip(self._weights, values, strict=True)])

    def from_rank_0(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        return value if self.group is None else self.group.broadcast_object(value, source=0)

    def check(self) -> None:
        """Before what was received changes anything for good. Raises PeerLost if somebody is gone."""
        if self.group is not None:
            self.group.check()

    def leave(self) -> None:
        """Part from the others, for ever."""
        if self.group is not None:
            with suppress(PeerLost):  # it has left already, with the same knowledge
                self.group.part()

    def weighted_sum(self, group: Group, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """DDP hook: each worker's mean gradient counts by its part of the global batch."""
        self._pacer.pace()
        gradients = bucket.buffer().mul_(self._shares[self.rank])
        return group.all_reduce(gradients)
