"""torch's process group of a gang: the workers that hold one model together (docs/adr/0055).

FSDP2 and DTensor ask torch's default process group for their collectives. This one moves their bytes by the group that
the gang's workers have connected, whose peers have proved the secret of their generation. It adds in the order of
positions, so the bits of a sum depend on the size of the gang, and not on a library or the links between its devices.
"""

# pyright: reportPrivateImportUsage=false, reportIncompatibleMethodOverride=false, reportAssignmentType=false
# pyright: reportCallIssue=false
# (torch.distributed takes process groups in Python, but its stubs describe those of C++ only)

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.transport import Transfer

_BACKEND = "elasticflow_gang"


class GangProcessGroup(dist.ProcessGroup):
    """The collectives of FSDP2 and DTensor between the workers of a gang, once `connect` gives it their group."""

    def __init__(self, position: int, size: int) -> None:
        super().__init__(position, size)
        self._position, self._num_positions = position, size
        self._group: Group | None = None
        self._name = self._description = ""
        self.is_broken = False  # a worker of the gang is lost, and with it a part of the model

    def connect(self, group: Group) -> None:
        self._group = group

    def getBackendName(self) -> str:
        return _BACKEND

    # torch keeps the name in a group's backends, of which a group in Python has none

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    # --- what torch.distributed calls ---

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        for tensor in tensors:
            gathered = self._gathered(tensor)
            self._check_received()
            self._add_up(tensor, gathered, dist.ReduceOp.SUM if opts is None else opts.reduceOp)
        return _Done(tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        return self.allreduce(tensors, opts)

    def allgather(self, output: list[list[torch.Tensor]], mine: list[torch.Tensor], opts: Any = None) -> dist.Work:
        del opts
        for onto, tensor in zip(output, mine, strict=True):
            for each, theirs in zip(onto, self._gathered(tensor), strict=True):
                each.copy_(theirs)
        return _Done(output)

    def _allgather_base(self, output: torch.Tensor, mine: torch.Tensor, opts: Any = None) -> dist.Work:
        del opts
        self._gather(list(output.view(-1).chunk(self._num_positions)), mine.reshape(-1))
        return _Done(output)

    def allgather_into_tensor_coalesced(
        self, outputs: list[torch.Tensor], mine: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        for output, tensor in zip(outputs, mine, strict=True):
            self._allgather_base(output, tensor, opts)
        self._check_received()
        return _Done(outputs)

    def _reduce_scatter_base(self, output: torch.Tensor, mine: torch.Tensor, opts: Any = None) -> dist.Work:
        self._add_up(output, self._scattered(mine), dist.ReduceOp.SUM if opts is None else opts.reduceOp)
        return _Done(output)

    def _scattered(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """What the workers have for this one, by position."""
        parts = list(mine.reshape(-1).chunk(self._num_positions))
        own = parts[self._position]
        received = [part if at == self._position else torch.empty_like(own) for at, part in enumerate(parts)]
        self._exchange(
            [Transfer(part, peer) for peer, part in enumerate(parts)],
            [Transfer(part, peer) for peer, part in enumerate(received)],
        )
        return received

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[torch.Tensor], mine: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        for output, tensor in zip(outputs, mine, strict=True):
            received = self._scattered(tensor)
            self._check_received()
            self._add_up(output, received, dist.ReduceOp.SUM if opts is None else opts.reduceOp)
        return _Done(outputs)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        for tensor in tensors:
            tensor.copy_(self._gathered(tensor)[opts.rootRank])
        return _Done(tensors)

    def barrier(self, opts: Any = None) -> dist.Work:
        del opts
        self.flags(0.0)
        return _Done(None)

    # the names of newer releases of torch
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    # --- what the engine calls ---

    def flags(self, *mine: float) -> list[list[float]]:
        """A collective: the numbers of all workers of the gang, by position."""
        return [each.tolist() for each in self._within(lambda group: group.all_gather(_numbers(mine)))]

    def from_position(self, source: int, value: Any) -> Any:
        """A collective: a plain value of one worker of the gang."""
        return self._within(lambda group: group.broadcast_object(value, source=source))

    # --- how it moves bytes ---

    def _gathered(self, mine: torch.Tensor) -> list[torch.Tensor]:
        received = [torch.empty_like(mine, memory_format=torch.contiguous_format) for _ in range(self._num_positions)]
        self._gather([each.view(-1) for each in received], mine.reshape(-1))
        return received

    def _gather(self, onto: Sequence[torch.Tensor], mine: torch.Tensor) -> None:
        mine = mine.contiguous()
        self._exchange(
            [Transfer(mine, peer) for peer in range(self._num_positions)],
            [Transfer(each, peer) for peer, each in enumerate(onto)],
        )
        onto[self._position].copy_(mine)

    def _exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        """The own part stays here, and empty ones are not sent."""

        def moved(transfers: Sequence[Transfer]) -> list[Transfer]:
            return [each for each in transfers if each.peer != self._position and each.tensor.numel()]

        with torch.no_grad():
            self._within(lambda group: group.exchange(moved(sends), moved(receives)))

    def _check_received(self) -> None:
        """For an operation of DTensor, such as a norm: its result may decide what the host does next."""
        self._within(lambda group: group.check_received())

    def _within(self, collective: Callable[[Group], Any]) -> Any:
        """Raises PeerLost, and knows from then on that the gang is broken."""
        assert self._group is not None, "the gang has not met yet"
        try:
            return collective(self._group)
        except PeerLost:
            self.is_broken = True
            raise

    def _add_up(self, output: torch.Tensor, parts: Sequence[torch.Tensor], operation: Any) -> None:
        kind = operation.op if hasattr(operation, "op") else operation
        first, *others = parts
        with torch.no_grad():
            total = first.clone()
            for other in others:
                if kind in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
                    total.add_(other)
                elif kind == dist.ReduceOp.MAX:
                    torch.maximum(total, other, out=total)
                elif kind == dist.ReduceOp.MIN:
                    torch.minimum(total, other, out=total)
                elif kind == dist.ReduceOp.PRODUCT:
                    total.mul_(other)
                else:
                    raise NotImplementedError(f"the workers of a replica do not reduce by {operation}")
            if kind == dist.ReduceOp.AVG:
                total.div_(self._num_positions)
            output.copy_(total.view_as(output))


class _Done(dist._Work):  # pyright: ignore[reportPrivateUsage]
    """A collective that is complete, or ordered behind the device's work, when it returns."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future = torch.futures.Future[Any]()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        del timeout
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future


def make_default_group(position: int, size: int) -> GangProcessGroup:
    """Make torch's default process group of this process that of its gang, which meets later."""
    made = GangProcessGroup(position, size)
    dist.Backend.register_backend(_BACKEND, lambda *_: made, devices=["cpu", "cuda"])
    dist.init_process_group(_BACKEND, store=dist.HashStore(), rank=position, world_size=size)
    return made


def _numbers(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)
