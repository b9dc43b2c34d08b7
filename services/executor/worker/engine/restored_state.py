"""The state with which the workers of a generation start together: that of the job's newest readable checkpoint.

Rank 0 reads what all workers have and broadcasts it. Of a sharded optimizer's state each worker reads only the files
that have some of its part. If one of them is missing or damaged for any worker, all take an older checkpoint. What is
repeated then is reported (docs/adr/0098).
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from elasticflow.services.executor.worker.checkpoint.files import (
    SHARDS,
    PartFiles,
    overlap,
    part_names,
    state_of,
)
from elasticflow.services.executor.worker.checkpoint.shards import with_shards
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore, Complete
from elasticflow.services.executor.worker.engine.sharded_optimizer import ShardedOptimizer
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.group.state_transfer import broadcast_state
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.shared.messages.job_spec import ContinuedJob
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment
from elasticflow.shared.runtime.process.logs import log
from elasticflow.shared.training_interface import Stateful

if TYPE_CHECKING:  # its import takes half a second, and few jobs need it
    from elasticflow.services.executor.worker.engine.gang import Gang

_POLL_S = 0.2  # for a checkpoint that the shared storage may not show yet
_MOST_NAMED = 4  # files, in a report


class Restored(NamedTuple):
    """lost_checkpoints: which newer checkpoints could not be used, and why; only rank 0 knows. "": none."""

    state: Mapping[str, Any]
    lost_checkpoints: str = ""


def restored_state(
    assignment: Assignment,
    members: GenerationMembers,
    destinations: Sequence[torch.Tensor],
    sharded: ShardedOptimizer | None,
) -> Restored:
    """A collective. destinations: tensors of the model. sharded: the optimizer, if this worker owns a part of it.

    Raises TrainingFailed as `newest_checkpoint` does, or Superseded.
    """
    store = checkpoint_store(assignment)

    def share(found: Any) -> dict[str, Any] | None:
        """A collective: rank 0's state, with this worker's part. None if a part is missing for some worker."""
        if members.gang is not None and members.rank == 0:
            found = _of_gang(members.gang, store.parts, found)
            if found is None:
                return None
        state: dict[str, Any] = found if members.group is None else broadcast_state(members.group, found, destinations)
        if sharded is None or not (names := part_names(state)):
            return state
        optimizer = _own_part(sharded, store.parts, names)
        return {**state, "optimizer": optimizer} if members.all_have(optimizer is not None) else None

    if not members.leads:
        while (state := share(None)) is None:
            log.info("older_checkpoint_awaited")
        return Restored(state)

    def complete(found: dict[str, Any]) -> dict[str, Any] | None:
        takes_parts = members.gang is not None or (sharded is not None and SHARDS not in found)
        readable = found if takes_parts else store.parts.joined(found)
        return None if readable is None else share(readable)

    state = newest_checkpoint(store, assignment, complete) if assignment.purpose == "train" else None
    lost = lost_checkpoints(store, assignment, 0 if state is None else state["iteration"])
    return Restored(state or share({"iteration": 0, "metrics": {}}) or {}, lost)


def _of_gang(gang: "Gang", parts: PartFiles, found: dict[str, Any] | None) -> dict[str, Any] | None:
    """A collective of the first gang: the state, with the rows of this worker. found: by the first of its workers.

    None if a part is missing for some worker. Raises TrainingFailed if the state is that of another gang.
    """
    common: dict[str, Any] = gang.from_position(0, found)
    if not common["iteration"]:
        return common  # there is no checkpoint
    names = common.pop(SHARDS, ())
    if (theirs := max(len(names), 1)) != gang.size:
        raise TrainingFailed(
            f"the checkpoint of iteration {common['iteration']} is that of a job with {theirs} GPUs for each "
            f"replica, and this one has {gang.size}: let it have gpus_per_replica = {theirs}, or submit it as a new job"
        )
    read = parts.read([names[gang.position]])
    if not gang.all_have(read is not None) or read is None:
        return None
    return with_shards(common, read[0]["shards"])


def checkpoint_store(assignment: Assignment, generation: int | None = None) -> CheckpointStore:
    """The job's checkpoints as a generation sees them; None: the generation of the assignment."""
    continued = assignment.spec.continues
    return CheckpointStore(
        Path(assignment.checkpoint_dir),
        generation=assignment.plan.generation if generation is None else generation,
        owner=assignment.job_identity,
        continued=continued.writers if continued is not None else (),
    )


def _own_part(sharded: ShardedOptimizer, parts: PartFiles, names: Sequence[str]) -> dict[str, Any] | None:
    """Read the own part from the files that have some of it: worker r of those that wrote them owned what rank r
    owns."""
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
    """The one that the ledger knows, or a newer one; if it is damaged or does not appear, an older one.

    None if the job has none yet. Raises TrainingFailed if the ledger knows one and none is readable. complete: as in
    `CheckpointStore.newest`.
    """
    known, deadline_s = assignment.checkpoint_iteration, time.monotonic() + assignment.checkpoint_wait_s
    while (state := checkpoints.newest(at_least=known, complete=complete)) is None and known:
        if checkpoints.has_damaged or time.monotonic() >= deadline_s:
            state = checkpoints.newest(complete=complete)
            if state is None:
                raise TrainingFailed(_nothing_readable(checkpoints, assignment))
            return state
        time.sleep(_POLL_S)
    return state


def lost_checkpoints(checkpoints: CheckpointStore, assignment: Assignment, iteration: int) -> str:
    """Say which checkpoints a start from this iteration passes over, and why; "" if none."""
    if unreadable := _unreadable_in_words(checkpoints):
        return unreadable
    if iteration >= assignment.checkpoint_iteration:
        return ""
    return (
        f"the checkpoint of iteration {assignment.checkpoint_iteration} is not in {assignment.checkpoint_dir}; if that "
        "is not the same shared storage on all nodes, set EF_DATA_DIR to one, or EF_CHECKPOINT_STORE to a bucket"
    )


def require_fitting(
    state: Mapping[str, Any], continued: ContinuedJob, objects: Mapping[str, Stateful], optimizer: torch.optim.Optimizer
) -> None:
    """Raises TrainingFailed, naming all differences, if the checkpoint of the job that this one continues is that of
    another model or optimizer. objects: all that outlives a generation, by name."""
    problems: list[str] = []
    if "model" in state:
        problems += _other_tensors(state["model"], objects["model"].state_dict())
    theirs, mine = state.get("optimizer_type", ""), type(optimizer).__qualname__
    if theirs and theirs != mine:
        problems.append(f"the optimizer is {mine}, and was {theirs}")
    saved = state.get("optimizer", {})
    of_all = saved.get("param_groups", ()) if "slices" not in saved else ()  # a part of a sharded state has its own
    groups = [len(group["params"]) for group in of_all]
    own_groups = [len(group["params"]) for group in optimizer.param_groups]
    if groups and groups != own_groups:
        problems.append(f"the optimizer has groups of {own_groups} parameters, and had {groups}")
    if new := sorted(name for name in objects if name not in state and name not in ("model", "optimizer")):
        problems.append(f"stateful() returns {', '.join(new)}, which had no state")
    if problems:
        raise TrainingFailed(
            f"the checkpoint of iteration {state['iteration']} of {continued.job_id} does not fit this job: "
            f"{'; '.join(problems)}; make them as they were, or submit the job without --from"
        )


def _other_tensors(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    """The tensors of two models that differ in name, shape or type, in words."""
    lacking, surplus = sorted(theirs.keys() - mine.keys()), sorted(mine.keys() - theirs.keys())
    problems = [f"the model has no {name}, which the checkpoint has" for name in lacking[:_MOST_NAMED]]
    problems += [f"the model has {name}, which the checkpoint lacks" for name in surplus[:_MOST_NAMED]]
    shapes = [(name, _shape(mine[name]), _shape(theirs[name])) for name in mine if name in theirs]
    changed = [f"{name} is {here}, and was {there}" for name, here, there in shapes if here != there]
    return problems + changed[:_MOST_NAMED]


def _shape(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def _nothing_readable(checkpoints: CheckpointStore, assignment: Assignment) -> str:
    if unreadable := _unreadable_in_words(checkpoints):
        return (
            f"no checkpoint in {assignment.checkpoint_dir} is readable: {unreadable}; restore the folder from a "
            "backup, and submit the job again: without a folder it begins at iteration 0"
        )
    return (
        f"the checkpoint of iteration {assignment.checkpoint_iteration} is not in {assignment.checkpoint_dir}, and no "
        "older one: set EF_DATA_DIR to the same shared storage on all nodes of the pool, or EF_CHECKPOINT_STORE to a "
        "bucket"
    )


def _unreadable_in_words(checkpoints: CheckpointStore) -> str:
    files = [f"{name}: {reason}" for name, (_, reason) in checkpoints.unreadable.items()]
    more = f"; and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
    return "; ".join(files[:_MOST_NAMED]) + more
