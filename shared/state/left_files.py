"""Nodes that keep files of a job which are not stored with it. Pure."""

from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState


def nodes_with_other_files(state: PoolState, job: Job, storing: str) -> tuple[str, ...]:
    """Those on which the job has trained in another data folder than the one from which this node stores files.

    Nodes that share a data folder name it alike.
    """
    store = state.nodes.get(storing)
    if store is None:
        return ()
    trained_on = (state.nodes.get(node_id) for node_id in job.trained_on)
    return tuple(node.node_id for node in trained_on if node and "" != node.data_folder != store.data_folder != "")
