"""Nodes that keep files of a job which are not stored with it. Pure."""

from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState


def nodes_with_other_files(state: PoolState, job: Job, storing: str) -> tuple[str, ...]:
    """Those on which the job has trained, beside the one that stores what it finds in its own data folder.

    One `eflow up` runs all its executors on one data folder. Of other nodes nobody says whether they share one.
    """
    store = state.nodes.get(storing)

    def shares_folder(node_id: str) -> bool:
        node = state.nodes.get(node_id)
        return node_id == storing or (
            store is not None and node is not None and "" != node.started_by == store.started_by
        )

    return tuple(node_id for node_id in job.trained_on if not shares_folder(node_id))
