"""GPU types and memory in the tables of nodes, in the picture of `eflow watch`, and in sentences."""

from dataclasses import replace
from typing import Any

import pytest
from rich.console import RenderableType

from elasticflow.cli.listings import nodes_table, unenforced_lines
from elasticflow.cli.watch import change_line, picture
from elasticflow.history.event_text import event_text, placed_in_words
from elasticflow.history.job_history import cause_in_words
from elasticflow.history.pool_views import job_views, node_views
from elasticflow.history.profile_views import profile_view
from elasticflow.history.tables import jobs_table
from elasticflow.shared.messages import events
from elasticflow.shared.runtime.process.terminal import console
from elasticflow.web.page_values import job_detail
from elasticflow.web.pool_history import PoolHistory
from testbed.histories import NOW_S, History, best_effort, gpus, pool, spec
from tests.support.two_types import two_types
from tests.support.worker_events import admitted, job, joined, placed

H100 = replace(joined("first", num_gpus=2, gpu_type="H100-80GB-HBM3"), gpu_memory_bytes=81_559 << 20)


def lines(shown: RenderableType) -> list[str]:
    """What a file gets, without spaces at the ends."""
    screen = console()
    with screen.capture() as capture:
        screen.print(shown)
    return [line.rstrip() for line in capture.get().splitlines()]


def table(history: History) -> list[list[str]]:
    """The columns up to DEVICE left out."""
    return [line.split()[3:] for line in lines(nodes_table(node_views(history.state), NOW_S))]


def test_nodes_have_columns_of_type_and_memory_where_any_is_known() -> None:
    history = pool(4)
    assert table(history)[0] == ["FREE", "GPUS", "JOBS"]
    history.then(joined("first", "node-1", gpu_type="cpu-0.25"))
    assert [row[:2] for row in table(history)] == [["TYPE", "FREE"], ["-", "4/4"], ["cpu-0.25", "4/4"]]
    history.then(replace(H100, node_id="node-2"))
    assert [row[:3] for row in table(history)] == [
        ["TYPE", "MEMORY", "FREE"],
        ["-", "-", "4/4"],
        ["cpu-0.25", "-", "4/4"],
        ["H100-80GB-HBM3", "79.6", "GiB"],
    ]


def test_what_machines_cannot_enforce_is_said_once_with_its_nodes() -> None:
    history = pool()
    for node_id, isolation, unenforced in (
        ("n1", "namespaces", ("no limit of memory",)),
        ("n2", "limits", ("no namespaces", "no limit of memory")),
        ("n3", "none", ("EF_ISOLATION=none",)),
    ):
        history.then(replace(joined("first", node_id), isolation=isolation, unenforced=unenforced))
    assert unenforced_lines(node_views(history.state)) == ["n1, n2: no limit of memory", "n2: no namespaces"]


def test_nodes_have_a_column_of_isolation_where_any_isolates() -> None:
    history = pool(4)
    history.then(replace(joined("first", "node-1"), isolation="none"))
    assert table(history)[0] == ["FREE", "GPUS", "JOBS"]
    history.then(replace(joined("first", "node-2"), isolation="namespaces"))
    assert [row[:2] for row in table(history)] == [
        ["ISOLATION", "FREE"],
        ["-", "4/4"],
        ["none", "4/4"],
        ["namespaces", "4/4"],
    ]


def test_watch_counts_gpus_by_type_where_types_differ() -> None:
    history = History().configured().then(H100)
    assert not any(line.startswith("GPUs by type") for line in lines(picture(history.state, NOW_S)))
    history.then(joined("first", "node-1", gpu_type="cpu-0.25"), joined("first", "node-2"))
    shown = lines(picture(history.state, NOW_S))
    assert shown[1] == "GPUs by type: 4 of no named type, 2 H100-80GB-HBM3, 4 cpu-0.25"


@pytest.mark.parametrize(("gpu_type", "ending"), [("", "4 GPUs"), ("cpu-1", "4 GPUs of type cpu-1")])
def test_a_joined_node_names_its_type(gpu_type: str, ending: str) -> None:
    assert cause_in_words(joined("first", gpu_type=gpu_type), "j1") == f"node-0 joined with {ending}"


def test_jobs_have_a_column_of_types_where_the_pool_has_several() -> None:
    one = pool(4).then(admitted("a"))
    assert "TYPE" not in lines(jobs_table(job_views(one.state, NOW_S), NOW_S))[0]
    both = two_types().then(admitted("a"), admitted("b", gpu_type="P100"))
    header, *rows = [line.split() for line in lines(jobs_table(job_views(both.state, NOW_S), NOW_S))]
    assert [(row[0], row[header.index("TYPE")]) for row in rows] == [("a", "V100"), ("b", "P100")]


def test_a_mixed_job_shows_its_gpus_by_type() -> None:
    on_both = events.PlacedJob(
        job_id="a",
        generation=1,
        gpus=gpus("node-0:0", "node-0:1", "node-1:0"),
        virtual_nodes_by_rank=(3, 3, 2),
        num_added_gpus=1,
    )
    history = two_types().then(admitted("a"), events.PlacementDecided(placements=(on_both,), at_s=NOW_S))
    (view,) = job_views(history.state, NOW_S)
    assert (view.num_gpus, view.gpu_type, view.num_added_gpus_by_type) == (3, "V100", {"P100": 1})
    assert "2 V100 + 1 P100" in lines(jobs_table((view,), NOW_S))[1]
    assert "starting  3 GPUs (2 V100 + 1 P100)  0/100" in change_line(view, NOW_S)
    row = job_detail(PoolHistory(), history.state, job(history), NOW_S)["row"]
    assert row["gpus_in_words"] == "3 GPUs (2 V100 + 1 P100)"
    assert row["sentence"].startswith("starting on 3 GPUs (2 V100 + 1 P100), iteration 0 of 100")
    said = placed_in_words(on_both, False, job(history))
    assert said == "generation 1 is placed on node-0:0,1 node-1:0, the last 1 of other types with virtual nodes 3:3:2"


def test_the_lines_of_watch_and_the_page_name_the_type_of_a_job_that_no_others_join() -> None:
    history = two_types().then(admitted("a"), placed(1, "node-0:0", "node-0:1"))
    (view,) = job_views(history.state, NOW_S)
    assert "starting  2 GPUs of type V100  0/100" in change_line(view, NOW_S)
    assert (
        job_detail(PoolHistory(), history.state, job(history), NOW_S)["row"]["gpus_in_words"] == "2 GPUs of type V100"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpu_type": "P100"}, "admitted on P100 (it displaces the least there): 1 GPU "),
        ({"spec": spec(gpu_type="V100")}, "admitted on V100 as requested: 1 GPU "),
        ({"minimum_satisfactory_share": (), "spec": best_effort()}, "admitted on V100 (all jobs there are done first)"),
    ],
)
def test_an_admission_says_on_which_type_and_why(changes: dict[str, Any], said: str) -> None:
    share = {"minimum_satisfactory_share": (NOW_S, NOW_S + 50.0, 1.0)}
    event = admitted("a", **share | changes)
    history = two_types().then(event)
    assert said in event_text(event, None, job(history), history.state)
    assert "on V100" not in event_text(event, None, job(history), pool(4).state)


@pytest.mark.parametrize(("named", "key", "rate"), [("", "", 1.0), ("V100", "", 1.0), ("P100", "@P100", 0.5)])
def test_a_profile_is_that_of_the_named_type(named: str, key: str, rate: float) -> None:
    view = profile_view(two_types(fast=4, slow=8).state, spec(gpu_type=named))
    assert view is not None
    assert (view.profile_key, view.points[0].iterations_per_s, view.complete) == (f"linear/b64{key}", rate, True)


def test_a_change_of_the_type_is_explained_with_its_reason_and_schedule() -> None:
    history, lack = two_types().then(admitted()), "the pool has 0 GPUs of type V100 now"
    share = (NOW_S, NOW_S + 70.0, 2.0)
    changed = events.GpuTypeChanged(
        job_id="a", gpu_type="P100", explanation=lack, minimum_satisfactory_share=share, at_s=NOW_S
    )
    before, after = job(history), job(history.then(changed))
    assert event_text(changed, before, after, history.state) == (
        "moved to GPUs of type P100, because the pool has 0 GPUs of type V100 now: 2 GPUs for 1m 10s keep its deadline"
    )
    assert cause_in_words(changed, "b") == "a moved to another GPU type"
    kept = events.GpuTypeKept(job_id="a", explanation=lack, at_s=NOW_S)
    assert event_text(kept, after, after, history.state) == f"it stays on GPUs of its type: {lack}"
