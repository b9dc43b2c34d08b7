"""What the nodes of a pool say of their isolation counts, not the environment of the one who asks."""

import os
from dataclasses import replace
from typing import Literal

import pytest

from elasticflow.client.doctor import isolation_problems, reports_isolation
from elasticflow.shared.messages.events import NodeLost
from testbed.histories import NOW_S, History
from tests.support.worker_events import joined

Kind = Literal["", "none", "limits", "namespaces"]


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def pool(*kinds: Kind, unenforced: tuple[str, ...] = ()) -> History:
    history = History()
    for number, kind in enumerate(kinds):
        history.then(replace(joined("first", f"node-{number}"), isolation=kind, unenforced=unenforced))
    return history


def problems(*kinds: Kind, unenforced: tuple[str, ...] = ()) -> list[str]:
    return list(isolation_problems(pool(*kinds, unenforced=unenforced).state.nodes.values()))


def test_isolated_nodes_are_sound_for_the_user_root_too() -> None:
    assert problems("namespaces", "namespaces", unenforced=("no limit for the main memory of a job",)) == []


def test_nodes_without_isolation_are_named_to_the_user_root_only(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = problems("namespaces", "none")
    assert found.startswith("this is the user root, and jobs on node-1 run as the user of their executor")
    assert "set EF_ISOLATION=auto for `eflow up`" in found
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert problems("none") == []


def test_nodes_without_namespaces_or_a_filter_are_named() -> None:
    lacks = "no filter of the system calls of jobs: libseccomp.so.2 is not installed"
    limited, unfiltered = problems("limits", "limits", unenforced=(lacks,))
    assert limited.startswith("jobs on node-0, node-1 see the processes and files of their executor's user")
    assert unfiltered.startswith(f"node-0, node-1: {lacks}; install it")


def test_a_pool_whose_nodes_have_left_or_are_older_says_nothing() -> None:
    history = pool("none")
    assert reports_isolation(history.state.nodes.values())
    history.then(NodeLost(node_id="node-0", incarnation="first", reason="left", at_s=NOW_S))
    assert not reports_isolation(history.state.nodes.values())
    assert not reports_isolation(pool("").state.nodes.values())
