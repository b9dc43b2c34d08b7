"""Whether all nodes share one data folder, in which jobs find their checkpoints and files on each node."""

from collections.abc import Iterable

from elasticflow.client.workers_check import alive_by, named
from elasticflow.shared.state.pool import NodeState


def data_folder_problems(nodes: Iterable[NodeState]) -> Iterable[str]:
    """What is wrong and what to do. Older nodes, and storage without hard links, have no name to compare."""
    by_folder = alive_by(lambda node: node.data_folder, nodes)
    if len(by_folder) > 1:
        groups = "; ".join(sorted(map(named, by_folder.values())))
        yield (
            f"nodes do not share their data folder: {groups}: a job that moves from one to another finds neither its "
            "checkpoints nor its files there; start all nodes with --data-dir on the same storage"
        )
