"""Nodes whose workers do not know each other are named, with what to do."""

from dataclasses import replace

from elasticflow.client.doctor import workers_problems
from elasticflow.shared.messages.events import NodeLost
from testbed.histories import NOW_S, History
from tests.support.worker_events import joined

ONE, TWO = "0" * 16, "1" * 16


def problems(*secrets: str) -> list[str]:
    history = History()
    for number, secret in enumerate(secrets):
        history.then(replace(joined("first", f"node-{number}"), workers_secret=secret))
    return list(workers_problems(history.state.nodes.values()))


def test_one_secret_on_all_nodes_is_sound() -> None:
    assert problems() == problems(ONE, ONE) == []


def test_nodes_of_older_versions_and_secrets_without_a_digest_are_passed_over() -> None:
    assert problems("", ONE, "") == []


def test_nodes_without_a_secret_are_named() -> None:
    (alone,) = problems("none")
    assert alone.startswith("workers on node-0 trust each connection: put workers.secret into")
    (found,) = problems(ONE, "none", "none")
    assert found.startswith("workers on node-1, node-2 trust each connection and do not meet those of other nodes")
    (many,) = problems(*["none"] * 7)
    assert "node-4 and 2 more" in many


def test_different_secrets_are_named_by_group() -> None:
    (found,) = problems(ONE, TWO, ONE)
    assert "no job trains on several of them: node-0, node-2; node-1: copy one" in found


def test_a_lost_node_does_not_count() -> None:
    history = History().then(replace(joined("first", "node-0"), workers_secret="none"))
    history.then(NodeLost(node_id="node-0", incarnation="first", reason="left", at_s=NOW_S))
    assert list(workers_problems(history.state.nodes.values())) == []
