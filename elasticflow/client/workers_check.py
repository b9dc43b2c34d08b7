"""Whether the workers of all nodes know each other by one secret (docs/adr/0070)."""

from collections.abc import Callable, Iterable, Sequence

from elasticflow.shared.runtime.process.workers_secret import FILE_NAME, VARIABLE
from elasticflow.shared.state.pool import NodeState

_SHOWN_NODES = 5


def workers_problems(nodes: Iterable[NodeState]) -> Iterable[str]:
    """What is wrong and what to do. Older nodes, and secrets that may be guessed, have no digest to compare."""
    by_digest = alive_by(lambda node: node.workers_secret, nodes)
    if without := by_digest.pop("none", None):
        others = " and do not meet those of other nodes" if by_digest else ""
        yield (
            f"workers on {named(without)} trust each connection{others}: put {FILE_NAME} into the data folder or "
            f"beside the key there, or set {VARIABLE}; `eflow keys workers` makes it"
        )
    if len(by_digest) > 1:
        groups = "; ".join(sorted(map(named, by_digest.values())))
        yield f"nodes have different secrets in {VARIABLE}, so no job trains on several of them: {groups}: copy one"


def alive_by(value_of: Callable[[NodeState], str], nodes: Iterable[NodeState]) -> dict[str, list[str]]:
    """The ids of living nodes by what they say; those that say nothing are left out."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        if node.alive and (value := value_of(node)):
            found.setdefault(value, []).append(node.node_id)
    return found


def named(node_ids: Sequence[str]) -> str:
    """The first ones, and how many more."""
    shown = ", ".join(sorted(node_ids)[:_SHOWN_NODES])
    return f"{shown} and {len(node_ids) - _SHOWN_NODES} more" if len(node_ids) > _SHOWN_NODES else shown
