"""The virtual nodes of a job on GPUs of several types, as placed. Pure (docs/adr/0049)."""
# pyright: strict

from collections.abc import Mapping

from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.state.gpu_types import as_recorded
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState, spec_of


def placed_mix(state: PoolState, job: Job) -> Mapping[str, tuple[int, ...]]:
    """The virtual nodes of each of its GPUs by recorded type, its own type first; empty if it has one type only.

    Survivors on GPUs of other types count as 0.
    """
    if not job.num_added_gpus:
        return {}
    found = dict[str, tuple[int, ...]]()
    types = [spec_of(job).gpu_type] * len(job.own_gpus) + [recorded_type(state, gpu) for gpu in job.added_gpus]
    for gpu_type, count in zip(types, job.virtual_nodes_by_rank or (0,) * len(types), strict=True):
        found[gpu_type] = (*found.get(gpu_type, ()), count)
    return found


def recorded_type(state: PoolState, gpu: GpuId) -> str:
    """The type of a GPU; that of a node that is unknown by now is the first."""
    node = state.nodes.get(gpu.node_id)
    return "" if node is None else as_recorded(state, node.gpu_type)
