"""The state with which the workers of a generation start together: that of the job's newest checkpoint.

Rank 0 reads what all workers have and broadcasts it. Of a sharded optimizer's state each worker reads only the files
that have some of its part. If one of them is missing or damaged for any worker, all take an older checkpoint.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
import torch

from elasticflow.services.executor.worker.checkpoint.parameter_slices import overlap, state_of
from elasticflow.services.executor.worker.checkpoint.part_files import PartFiles, part_names
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore, Complete
from elasticflow.services.executor.worker.elastic.state_transfer import broadcast_state
from elasticflow.services.executor.worker.steps.sharded_optimizer import ShardedOptimizer
from elasticflow.services.executor.worker.steps.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment

log = structlog.get_logger()

_POLL_S = 0.2  # for a checkpoint that the shared storage may not show yet


def restored_state(
    assignment: Assignment,
    members: GenerationMembers,
    destinations: Sequence[torch.Tensor],
    sharded: ShardedOptimizer | None,
) -> Mapping[str, Any]:
    """A collective. destinations: tensors of the model. sharded: the optimizer, if this worker owns a part of it.

    Raises TrainingFailed as `newest_checkpoint` does, or Superseded.
    """
    store = CheckpointStore(Path(assignment.checkpoint_dir), generation=assignment.generation)

    def share(found: Any) -> dict[str, Any] | None:
        """A collective: rank 0's state, with this worker's part. None if a part is missing for some worker."""
        state: dict[str, Any] = found if members.group is None else broadcast_state(members.group, found, destinations)
        if sharded is None or not (names := part_names(state)):
            return state
        optimizer = _own_part(sharded, store.parts, names)
        return {**state, "optimizer": optimizer} if members.all_have(optimizer is not None) else None

    if members.rank > 0:
        while (state := share(None)) is None:
            log.info("older_checkpoint_awaited")
        return state

    def complete(found: dict[str, Any]) -> dict[str, Any] | None:
        readable = found if sharded is not None else store.parts.joined(found)
        return None if readable is None else share(readable)

    state = newest_checkpoint(store, assignment, complete) if assignment.purpose == "train" else None
    return state or share({"iteration": 0, "metrics": {}}) or {}


def _own_part(sharded: ShardedOptimizer, parts: PartFiles, names: Sequence[str]) -> dict[str, Any] | None:
    """From the files that have some of it: worker r of those that wrote them owned what rank r owns."""
    owned = [sharded.layout.owned(rank, len(names)) for rank in range(len(names))]
    mine = sharded.held
    needed = [name for name, theirs in zip(names, owned, strict=True) if overlap(mine, theirs)]
    read = parts.read(needed or names[:1])  # each has the settings
    if read is None:
        return None
    return {
        "state": state_of(sharded.slices, read),
        "param_groups": read[0]["param_groups"],
        "slices": [tuple(each) for each in sharded.slices],
    }


def newest_checkpoint(
    checkpoints: CheckpointStore, assignment: Assignment, complete: Complete | None = None
) -> dict[str, Any] | None:
    """None if the job has none yet. Raises TrainingFailed if the one that the ledger knows is missing: work that it
    counts as done must not be repeated silently. complete: as in `CheckpointStore.newest`."""
    deadline_s = time.monotonic() + assignment.checkpoint_wait_s
    while (state := checkpoints.newest(at_least=assignment.checkpoint_iteration, complete=complete)) is None:
        if assignment.checkpoint_iteration == 0:
            return None
        if time.monotonic() >= deadline_s:
            raise TrainingFailed(
                f"the checkpoint of iteration {assignment.checkpoint_iteration} is not in "
                f"{assignment.checkpoint_dir}: set EF_DATA_DIR to the same shared storage on all nodes of the pool"
            )
        time.sleep(_POLL_S)
    return state
