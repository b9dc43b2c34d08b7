"""A gang: the workers that compute each virtual node together, and hold one model and its optimizer by FSDP2.

Each worker passes its part of a virtual node's samples through the model, and FSDP2 adds the gradients up, so that each
has the rows of the virtual node's gradient that belong to its parameters. Everything between gangs is then as between
workers without gangs, once for each position, on these rows (docs/adr/0055).

A gang never waits for another one within a pass of the model. What a worker learns of other gangs, it tells its own at
the end of each collective: all of them take the step, or none. So the loss of another gang never finds a pass half
done. The loss of a worker of the own gang ends it.
"""

# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false
# (torch documents FSDP2 and DTensor, and exports them in part; it does not say which hooks a tensor has)

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from elasticflow.services.executor.worker.checkpoint.shards import replaced, shard, with_tensors
from elasticflow.services.executor.worker.data.virtual_nodes import MicroBatch, VirtualNodes
from elasticflow.services.executor.worker.engine.gradient_scaling import ScalerState
from elasticflow.services.executor.worker.engine.local_shards import local_of
from elasticflow.services.executor.worker.engine.sharded_optimizer import require_divisible
from elasticflow.services.executor.worker.group.gang_group import GangProcessGroup, make_default_group
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.compiled_models import is_compiled
from elasticflow.shared.training_interface import Stateful


def begin_gang(position: int, size: int, device: torch.device) -> "Gang":
    """The gang of this process for its whole life, whose other workers it meets later."""
    return Gang(make_default_group(position, size), device)


class Gang:
    """One worker's gang. group: torch's default process group, over which FSDP2 divides the model."""

    def __init__(self, group: GangProcessGroup, device: torch.device) -> None:
        self._group = group
        self.position, self.size = group.rank(), group.size()
        self._mesh = DeviceMesh.from_group(group, device.type)

    @property
    def is_broken(self) -> bool:
        """Whether one of its workers is lost, and a part of the model with it."""
        return self._group.is_broken

    def connect(self, group: Group) -> None:
        """Its workers have met."""
        self._group.connect(group)

    def parts_of(self, micro_batches: Iterable[MicroBatch], virtual_nodes: VirtualNodes) -> tuple[MicroBatch, ...]:
        """What this worker computes of its gang's micro-batches."""
        return tuple(virtual_nodes.divided(each, self.position, self.size) for each in micro_batches)

    # --- the model ---

    def shard_model(self, model: nn.Module, blocks: Iterable[nn.Module]) -> None:
        """Divide the model over the gang, unless init_model() has done it. Raises TrainingFailed."""
        if any(is_compiled(module) for module in model.modules()):
            raise TrainingFailed(
                f"gpus_per_replica: a compiled model cannot be divided over {self.size} GPUs: do not compile it"
            )
        self.require_no_hooks(model)
        if not isinstance(model, FSDPModule):
            inside = {id(module) for module in model.modules()}
            for block in blocks:
                if id(block) not in inside:
                    raise TrainingFailed(
                        f"sharded_blocks() returned {type(block).__name__}, which is no module of the model: let it "
                        "return modules of the model that it gets"
                    )
                if block is not model:
                    fully_shard(block, mesh=self._mesh, reshard_after_forward=True)
            fully_shard(model, mesh=self._mesh, reshard_after_forward=True)
        for name, parameter in model.named_parameters():
            if not self._is_divided(parameter):
                raise TrainingFailed(
                    f"gpus_per_replica: the parameter {name} is not divided by its rows over the {self.size} GPUs of a "
                    "replica: let init_model() return the model without a mesh of its own, or call fully_shard() "
                    "without one"
                )
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # losses are weighted by samples
                module.set_force_sum_reduction_for_comms(True)
                module.set_reshard_after_forward(True, recurse=False)

    def _is_divided(self, parameter: torch.Tensor) -> bool:
        return (
            isinstance(parameter, DTensor)
            and parameter.device_mesh == self._mesh
            and parameter.placements == (Shard(0),)
        )

    def require_no_hooks(self, model: nn.Module) -> None:
        """Raises TrainingFailed: FSDP2 computes gradients of other tensors, so it would not call them."""
        for name, parameter in model.named_parameters():
            if parameter._backward_hooks:
                raise TrainingFailed(
                    f"gpus_per_replica: the parameter {name} has a hook (register_hook), which is not called where "
                    "several GPUs hold the model: change parameter.grad behind backward(), in train()"
                )

    def require_no_scaler(self, stateful: Mapping[str, Stateful]) -> None:
        """Raises TrainingFailed: each worker would look for infinities in its own rows."""
        if scalers := [name for name, each in stateful.items() if isinstance(each, ScalerState)]:
            raise TrainingFailed(
                f"gpus_per_replica: {scalers[0]} of stateful() is a GradScaler, which needs the whole gradient: use "
                "bfloat16, which needs none"
            )

    def require_divisible(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Raises TrainingFailed if parts of a step would differ from the whole step."""
        for each in optimizers:
            require_divisible(each, "gpus_per_replica", "or train it with gpus_per_replica = 1")

    # --- the state ---

    def marked(self, state: Any) -> Any:
        """The state with a marked shard in place of each divided tensor."""
        return replaced(state, lambda leaf: shard(local_of(leaf), leaf.shape) if isinstance(leaf, DTensor) else leaf)

    def unmarked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state with divided tensors, from marked shards."""
        return with_tensors(dict(state), self._divided)

    def _divided(self, rows: torch.Tensor, shape: torch.Size) -> DTensor:
        strides = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(rows, self._mesh, (Shard(0),), run_check=False, shape=shape, stride=strides)

    # --- what its workers tell each other ---

    def flags(self, *mine: float) -> list[list[float]]:
        """A collective: numbers of all its workers, by position."""
        return self._group.flags(*mine)

    def all_have(self, mine: bool) -> bool:
        """A collective: whether it is true for all its workers."""
        return all(theirs for (theirs,) in self.flags(mine))

    def from_position(self, source: int, value: Any) -> Any:
        """A collective: a plain value of one of its workers."""
        return self._group.from_position(source, value)

    @contextmanager
    def together(self) -> Iterator[None]:
        """A collective between gangs in the block succeeds for all workers of this gang, or raises PeerLost in all."""
        try:
            yield
        except PeerLost:
            if not self.is_broken:
                self.flags(False)
            raise
        if not self.all_have(True):
            raise PeerLost("another worker of the replica has lost a peer")
