"""What the workers of a generation agree on at each step boundary: stop, switch, metrics, state fingerprint.

All agreed numbers are combined in the order of virtual nodes, so that every worker computes the same bits.

Each worker runs the optimizer's step by itself. A flipped bit, or a schedule in an attribute, which a joining worker
does not have, would make one of them diverge unnoticed. So the workers compare a fingerprint of their states: settings
all of them, tensors those whose devices compute the same bits.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.additional_state import AdditionalState, optimizer_settings
from elasticflow.services.executor.worker.engine.gradient_digest import COMPARE_TENSORS_EVERY
from elasticflow.services.executor.worker.engine.local_shards import local_of
from elasticflow.services.executor.worker.engine.summation_tree import tree_sum
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.interface import TrainingFailed

if TYPE_CHECKING:  # its import takes half a second, and few jobs need it
    from elasticflow.services.executor.worker.engine.gang import Gang

_HEAD = 10  # numbers of a worker before those of its virtual nodes
_DIFFERS = float(1 << 32)  # in place of 32 bits that differ within a gang; each gang adds its number


class Fingerprint(NamedTuple):
    """settings: of the optimizer, and the additional state's numbers. tensors: 0 if they are not compared now. samples:
    the checksum of a stream. plain: of the user's plain state."""

    settings: int = 0
    tensors: int = 0
    samples: int = 0
    plain: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The same bits on all workers."""

    stop: bool  # at least one worker was asked to
    over: bool  # at least one training function ended the job
    switch: bool  # all are ready for the same new generation
    same: bool  # all have the same fingerprint, as far as they compute the same bits
    differing_digests: tuple[tuple[int, float], ...]  # ranks that compute the same bits, with other gradients
    same_samples: bool  # all read the same stream
    same_plain: bool  # all have the same plain state of the user's code
    checkpoint: bool  # at least one worker wants one of this step
    compute_s: tuple[float, ...]  # by rank: time before the first wait for peers, per unit of batch weight
    means: tuple[float, ...]  # over the global batch


class GenerationMembers:
    """One worker among those of its generation. group: None for a worker that is alone.

    gang: of several workers that hold the model together. Then group has the workers of its position in all gangs, and
    ranks are numbers of gangs. Each collective with other gangs succeeds in all workers of a gang, or in none.
    """

    def __init__(self, group: Group | None, virtual_nodes: VirtualNodes, gang: "Gang | None" = None) -> None:
        self.group, self.gang = group, gang
        self.rank, self.world_size = (group.rank, group.size) if group else (0, 1)
        self.virtual_nodes = virtual_nodes
        self.computed = virtual_nodes.computed_by(self.rank, self.world_size)
        if gang is not None:
            self.computed = gang.parts_of(self.computed, virtual_nodes)
        self._weight_computed = sum(micro_batch.weight for micro_batch in self.computed)
        self._blocks = [virtual_nodes.block(rank, self.world_size) for rank in range(self.world_size)]
        self._weights = [virtual_nodes.weight(virtual_node) for virtual_node in range(virtual_nodes.count)]
        self._arithmetics = [each.arithmetic for each in group.identities] if group else [""]

    @property
    def leads(self) -> bool:
        """Whether it is the first of all workers, which speaks for the job."""
        return self.rank == 0 and (self.gang is None or self.gang.position == 0)

    @property
    def num_workers(self) -> int:
        """Of all gangs."""
        return self.world_size * (1 if self.gang is None else self.gang.size)

    @property
    def are_several(self) -> bool:
        """Whether this worker has peers whose state it can compare with its own."""
        return self.group is not None or self.gang is not None

    def with_virtual_nodes(self, virtual_nodes: VirtualNodes) -> "GenerationMembers":
        """The same workers with another batch."""
        return GenerationMembers(self.group, virtual_nodes, self.gang)

    def together(self) -> AbstractContextManager[None]:
        """A collective with other gangs in the block succeeds in all workers of this gang, or raises PeerLost in
        all."""
        return nullcontext() if self.gang is None or self.group is None else self.gang.together()

    @property
    def have_same_arithmetic(self) -> bool:
        """Whether the devices of all workers compute the same bits."""
        return len(set(self._arithmetics)) == 1

    @property
    def weights_by_rank(self) -> list[float]:
        """Each worker's part of the global batch."""
        return [sum(self._weights[v] for v in block) for block in self._blocks]

    def agree(
        self,
        *,
        stop: bool,
        over: bool,
        ready_generation: int,
        fingerprint: Fingerprint,
        gradient_digest: float = 0.0,
        compute_s: float,
        rows: Sequence[Sequence[float]],
        checkpoint: bool = False,
    ) -> Agreement:
        """A collective, once a step.

        ready_generation: the generation to which this worker could switch now, 0 if there is none. gradient_digest: of
        the gradients with which its optimizer has stepped. compute_s: time before this worker's first wait for peers.
        rows: numbers of each micro-batch computed here, all equally many.
        """
        block = self.block
        rows = self._by_virtual_node(rows)
        width = len(rows[0]) if rows else 0
        longest = max(map(len, self._blocks))
        compute_s /= self._weight_computed
        mine = [
            stop,
            over,
            ready_generation,
            *fingerprint,
            compute_s,
            checkpoint,
            gradient_digest,
            *chain.from_iterable(rows[: len(block)]),
        ]
        are_alike = are_plainly_alike = True
        if self.gang is not None:
            mine, are_alike, are_plainly_alike = self._of_gang(self.gang, mine)
        ready_generation = int(mine[2])
        gathered = self._all_gather(mine, length=_HEAD + longest * width)
        return Agreement(
            stop=any(theirs[0] for theirs in gathered),
            over=any(theirs[1] for theirs in gathered),
            switch=ready_generation > 0 and all(theirs[2] == ready_generation for theirs in gathered),
            same=are_alike and self._are_same([Fingerprint(int(theirs[3]), int(theirs[4])) for theirs in gathered]),
            same_samples=len({theirs[5] for theirs in gathered}) == 1,
            same_plain=are_plainly_alike and len({theirs[6] for theirs in gathered}) == 1,
            compute_s=tuple(theirs[7] for theirs in gathered),
            checkpoint=any(theirs[8] for theirs in gathered),
            differing_digests=self._differing([theirs[9] for theirs in gathered]),
            means=self._means([theirs[_HEAD:] for theirs in gathered], width),
        )

    def _of_gang(self, gang: "Gang", mine: Sequence[float]) -> tuple[list[float], bool, bool]:
        """What a gang says to others at this position, and whether its own workers have the same settings, and the same
        plain state. mine: of this worker, as `agree` gathers it."""
        by_position = gang.flags(*mine)
        stop, over, ready, settings, _, _, plain, compute_s, checkpoint, _ = list(zip(*by_position, strict=True))[
            :_HEAD
        ]
        are_alike, are_plainly_alike = len(set(settings)) == 1, len(set(plain)) == 1
        differs = _DIFFERS + self.rank
        combined = [
            any(stop),
            any(over),
            ready[0] if len(set(ready)) == 1 else 0,
            settings[0] if are_alike else differs,
            mine[4],
            mine[5],
            plain[0] if are_plainly_alike else differs,
            max(compute_s),
            any(checkpoint),
            mine[9],
            *(sum(parts, start=0.0) for parts in zip(*(each[_HEAD:] for each in by_position), strict=True)),
        ]
        return combined, are_alike, are_plainly_alike

    def _are_same(self, fingerprints: Sequence[Fingerprint]) -> bool:
        """fingerprints: by rank."""
        settings = {each.settings for each in fingerprints}
        tensors = {(how, each.tensors) for how, each in zip(self._arithmetics, fingerprints, strict=True)}
        return len(settings) == 1 and len(tensors) == len(set(self._arithmetics))

    def _differing(self, digests: Sequence[float]) -> tuple[tuple[int, float], ...]:
        """The first two ranks whose digests differ although they compute the same bits, with these; else nothing."""
        first: dict[str, int] = {}  # rank, by arithmetic
        for rank, (arithmetic, digest) in enumerate(zip(self._arithmetics, digests, strict=True)):
            other = first.setdefault(arithmetic, rank)
            if digests[other] != digest:
                return (other, digests[other]), (rank, digest)
        return ()

    def means(self, rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
        """A collective: means over the global batch. rows: as for `agree`."""
        rows = self._by_virtual_node(rows)
        width = len(rows[0])
        mine = list(chain.from_iterable(rows[: len(self.block)]))
        if self.gang is not None:
            mine = [sum(parts, start=0.0) for parts in zip(*self.gang.flags(*mine), strict=True)]
        gathered = self._all_gather(mine, length=max(map(len, self._blocks)) * width)
        return self._means(gathered, width)

    def _means(self, gathered: Sequence[Sequence[float]], width: int) -> tuple[float, ...]:
        return tuple(map(self._mean, zip(*self._rows_of_all(gathered, width), strict=True)))

    def _all_gather(self, mine: list[float], *, length: int) -> list[list[float]]:
        """The numbers of all workers, by rank, padded with zeros to the length."""
        if self.group is None:
            return [mine]
        padded = torch.tensor(mine + [0.0] * (length - len(mine)), dtype=torch.float64)
        with self.together():
            return [theirs.tolist() for theirs in self.group.all_gather(padded)]

    def _rows_of_all(self, gathered: Sequence[Sequence[float]], width: int) -> list[Sequence[float]]:
        """One row for each virtual node, in order. gathered: the rows of each worker, one after another."""
        return [
            theirs[i * width : (i + 1) * width]
            for theirs, block in zip(gathered, self._blocks, strict=True)
            for i in range(len(block))
        ]

    def _by_virtual_node(self, rows: Sequence[Sequence[float]]) -> list[list[float]]:
        """Means over the micro-batches of each virtual node, added in order."""
        means: dict[int, list[float]] = {}
        for micro_batch, row in zip(self.computed, rows, strict=True):
            part = micro_batch.weight / self._weights[micro_batch.virtual_node]
            before = means.get(micro_batch.virtual_node, [0.0] * len(row))
            means[micro_batch.virtual_node] = [mean + part * value for mean, value in zip(before, row, strict=True)]
        return list(means.values())

    def _mean(self, values: Sequence[float]) -> float:
        return tree_sum([weight * value for weight, value in zip(self._weights, values, strict=True)])

    @property
    def block(self) -> range:
        """The virtual nodes of this worker; empty for a surplus worker."""
        return self._blocks[self.rank]

    def from_rank_0(self, value: Any) -> Any:
        """A collective: rank 0's value, on all ranks."""
        return self._from(0, value)

    def from_last_virtual_node(self, value: Any) -> Any:
        """A collective: the value of the worker that has it, on all ranks."""
        theirs = self._from(max(rank for rank, block in enumerate(self._blocks) if block), value)
        return theirs if self.gang is None else self.gang.from_position(self.gang.size - 1, theirs)

    def _from(self, rank: int, value: Any) -> Any:
        if self.group is None:
            return value
        with self.together():
            return self.group.broadcast_object(value, source=rank)

    def all_have(self, mine: bool) -> bool:
        """A collective: whether it is true for all workers."""
        if self.gang is not None:
            mine = self.gang.all_have(mine)
        if self.group is None:
            return mine
        with self.together():
            return bool(torch.stack(self.group.all_gather(torch.tensor(mine))).all())

    def await_all(self) -> None:
        """A collective: return when all workers have arrived, however long their own code takes."""
        if self.group is not None:
            with self.together():
                self.group.await_all()

    def sums(self, rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """A collective: sums over all virtual nodes, the same bits on all workers, and at any number of them.

        rows: of this worker's virtual nodes, in order, all with the same names.
        """
        names = self.from_rank_0(tuple(rows[0]) if rows else ())
        mine = [float(row[name]) for row in rows for name in names]
        gathered = self._all_gather(mine, length=max(map(len, self._blocks)) * len(names))
        all_rows = self._rows_of_all(gathered, len(names))
        return {name: tree_sum(list(column)) for name, column in zip(names, zip(*all_rows, strict=True), strict=True)}

    def check_received(self) -> None:
        """A collective within a gang: check received data before they change anything permanently. Raises PeerLost if a
        peer is gone."""
        if self.group is not None:
            with self.together():
                self.group.check_received()

    def check_open(self) -> None:
        """Raises PeerLost if the group was closed."""
        if self.group is not None:
            self.group.check_open()

    def leave(self) -> None:
        """Wait for all peers, before this worker ends."""
        if self.group is not None:
            with suppress(PeerLost):  # a peer that ended already knows the same
                self.group.barrier()


def fingerprint(
    optimizer: torch.optim.Optimizer,
    parameters: Iterable[torch.Tensor],
    additional: AdditionalState,
    iteration: int,
) -> Fingerprint:
    """32 bits each; of the tensors, all parameters and those of the additional state, some steps."""
    structure, tensors = additional.state()
    settings = [
        {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in group.items()}
        for group in optimizer_settings(optimizer)
    ]
    checksum = 0
    if iteration % COMPARE_TENSORS_EVERY == 0:
        for tensor in (*parameters, *tensors):
            checksum = zlib.crc32(checksum_of(local_of(tensor).detach()), checksum)
    plain = zlib.crc32(repr(sorted(additional.changed_plain().items())).encode(errors="surrogatepass"))
    return Fingerprint(zlib.crc32(repr((settings, structure)).encode()), checksum, plain=plain)


def checksum_of(tensor: torch.Tensor) -> bytes:
    """The checksum of the tensor's bits, on its device: one flipped bit always changes it."""
    data = tensor.contiguous().reshape(-1).view(torch.uint8)
    data = data if data.storage_offset() % 4 == 0 else data.clone()  # of a view: words begin at multiples of four bytes
    words = data.view(torch.int32) if data.numel() % 4 == 0 else data
    return int(words.sum(dtype=torch.int64)).to_bytes(8, "little", signed=True)


def require_same_state(same: bool, iteration: int, model: nn.Module, *, is_script: bool) -> None:
    """model: as train() receives it. Raises TrainingFailed with the likely cause if the fingerprints differ."""
    if same:
        return
    if isinstance(model, DistributedDataParallel) and not model.find_unused_parameters:
        without = [name for name, p in model.module.named_parameters() if p.requires_grad and p.grad is None]
        # torch has not summed the parameters that share its bucket, and reports it in the next step
        if without:
            raise TrainingFailed(
                f"the parameter {without[0]} has no gradient in iteration {iteration}, which the fast mode waits for: "
                'set find_unused_parameters = True, or reproducible = "bitwise"'
            )
    if is_script:
        raise TrainingFailed(
            f"the workers' states differ after iteration {iteration}: the optimizer settings, the parameters or an "
            "object that elastic() got of one worker diverged. Derive what the loop changes, such as a learning rate, "
            "from loader.iteration, from the loss behind backward(), which is the mean of the whole batch, or from an "
            "evaluation of whole data; not from other values of a part of the batch, such as an accuracy, nor from the "
            "time or numbers drawn without the job's seed"
        )
    raise TrainingFailed(
        f"the workers' states differ after iteration {iteration}: the optimizer settings, the parameters or the "
        "objects of stateful() of one worker diverged. Let init_model() draw random numbers only from torch, numpy or "
        "Python without seeding them, since all workers seed these alike; and derive what train() changes, such as a "
        "learning rate, from self.iteration or an object that stateful() returns, not from attributes, which a worker "
        "that joins later does not have, nor from the samples of one part of the batch (a ReduceLROnPlateau steps with "
        "elasticflow.mean(loss), or with a value of the whole validation set)"
    )
