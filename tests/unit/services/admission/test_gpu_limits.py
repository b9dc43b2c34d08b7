"""An operator limits a job's GPUs for a while: the allocator obeys, and no promise is broken."""

from typing import Any

import pytest

from elasticflow.history.job_history import job_history
from elasticflow.history.pool_views import job_views
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import CancelJob, SetGpuLimits
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.messages.gpus import GpuLimits, segments
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.state.idempotent_replies import idempotent_reply
from elasticflow.shared.state.snapshot_encoding import dump, load
from testbed.histories import NOW_S, History, gpus, pool, submit


def command(job_id: str = "a", tenant: str = "lab", **changes: Any) -> SetGpuLimits:
    return SetGpuLimits(job_id=job_id, tenant=tenant, **changes)


def scaled(history: History, asked: SetGpuLimits, now_s: float = NOW_S) -> events.GpuLimitsSet:
    (answer,) = history.decided(ADMISSION, asked, now_s=now_s)
    assert isinstance(answer, events.GpuLimitsSet), answer
    return answer


def rejected(history: History, asked: SetGpuLimits, now_s: float = NOW_S) -> events.GpuLimitsRejected:
    before = history.state.job(asked.job_id)
    (answer,) = history.decided(ADMISSION, asked, now_s=now_s)
    assert isinstance(answer, events.GpuLimitsRejected), answer
    assert history.state.job(asked.job_id) is before
    return answer


def shares(history: History, now_s: float = NOW_S) -> dict[str, int]:
    history.decided(ALLOCATOR, now_s=now_s)
    history.decided(PLACEMENT, now_s=now_s)
    return {job_id: job.num_gpus for job_id, job in sorted(history.state.live_jobs.items())}


def slack(*num_gpus: int, **config: Any) -> History:
    """Job a has a promise that one GPU keeps easily."""
    history = pool(*num_gpus, **config)
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 400.0))
    return history


# --- scale in -------------------------------------------------------------------------------------------


def test_a_job_that_is_scaled_in_gives_up_extra_gpus_and_keeps_its_promise() -> None:
    history = slack(8)
    assert shares(history) == {"a": 8}
    answer = scaled(history, command(max_gpus=2))
    assert {s.num_gpus for s in segments(answer.minimum_satisfactory_share)} <= {1, 2}
    assert max(s.end_s for s in segments(answer.minimum_satisfactory_share)) <= NOW_S + 400.0
    assert shares(history) == {"a": 2}


def test_limits_that_would_break_the_promise_are_rejected_with_a_number_that_is_granted() -> None:
    history = pool(8)
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 60.0))
    answer = rejected(history, command(max_gpus=1))
    assert answer.num_gpus == 2
    assert "could not be kept; 2 would be possible" in answer.explanation
    scaled(history, command(max_gpus=2))


def test_a_maximum_of_three_gpus_means_two() -> None:
    history = slack(8)
    scaled(history, command(max_gpus=3))
    assert shares(history) == {"a": 2}


# --- scale out ------------------------------------------------------------------------------------------


def test_a_job_that_is_scaled_out_takes_extra_gpus_of_other_jobs() -> None:
    history = slack(8)
    history.decided(ADMISSION, submit("b", deadline_s=NOW_S + 500.0))
    assert shares(history) == {"a": 4, "b": 4}
    answer = scaled(history, command(min_gpus=8))
    assert set(answer.replanned) == {"b"}, "it shrinks, and meets its deadline"
    assert max(s.end_s for s in segments(answer.replanned["b"])) <= NOW_S + 500.0
    assert shares(history) == {"a": 8, "b": 0}


def test_scaling_out_takes_no_promised_gpus() -> None:
    history = pool(8)
    history.decided(ADMISSION, submit("b", deadline_s=NOW_S + 30.0, max_gpus=4))  # on 4 GPUs, from now on
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 400.0))
    answer = rejected(history, command(min_gpus=8))
    assert answer.num_gpus == 4
    scaled(history, command(min_gpus=4))
    assert shares(history)["b"] == 4


def test_jobs_without_a_promise_are_scaled_on_gpus_that_promises_leave() -> None:
    history = pool(8)
    history.decided(ADMISSION, submit("b", deadline_s=NOW_S + 30.0, max_gpus=4))
    spare = {"job_class": JobClass.BEST_EFFORT, "deadline_s": None}
    history.decided(ADMISSION, submit("a", **spare), submit("c", max_iterations=50, **spare))
    assert shares(history) == {"a": 2, "b": 4, "c": 2}
    assert rejected(history, command(min_gpus=8)).num_gpus == 4
    scaled(history, command(min_gpus=4))
    assert shares(history) == {"a": 4, "b": 4, "c": 0}  # GPU limits come before the shortest job


# --- how long limits last --------------------------------------------------------------------------------


def test_gpu_limits_expire_and_the_service_wakes_for_it() -> None:
    history = slack(8)
    scaled(history, command(max_gpus=1, until_s=NOW_S + 50.0))
    assert shares(history) == {"a": 1}
    assert ADMISSION.wake_at_s(history.state) == NOW_S + 50.0
    assert history.decided(ADMISSION, now_s=NOW_S + 49.0) == ()
    (over,) = history.decided(ADMISSION, now_s=NOW_S + 50.0)
    assert over == events.GpuLimitsCleared(job_id="a", reason="they have expired", at_s=NOW_S + 50.0)
    assert shares(history, NOW_S + 50.0) == {"a": 8}
    assert not history.state.gpu_limits
    assert ADMISSION.wake_at_s(history.state) is None


def test_gpu_limits_are_cleared_only_if_the_job_has_some() -> None:
    history = slack(8)
    assert "it has no GPU limits" in rejected(history, command()).explanation
    scaled(history, command(max_gpus=1))
    (over,) = history.decided(ADMISSION, command())
    assert isinstance(over, events.GpuLimitsCleared)
    assert shares(history) == {"a": 8}


def test_new_gpu_limits_replace_the_existing_ones() -> None:
    history = slack(8)
    scaled(history, command(max_gpus=1))
    scaled(history, command(min_gpus=4))
    assert history.state.gpu_limits["a"] == GpuLimits(min_gpus=4, max_gpus=None, until_s=None)
    assert shares(history)["a"] >= 4


def test_the_same_command_again_is_answered_and_has_no_effect() -> None:
    history = slack(8)
    answer = scaled(history, command(max_gpus=2, until_s=NOW_S + 50.0))
    before = history.state
    assert history.decided(ADMISSION, command(max_gpus=2, until_s=NOW_S + 50.0)) == ()
    assert history.state is before
    reported = idempotent_reply(history.state, command(max_gpus=2, until_s=NOW_S + 50.0))
    assert isinstance(reported, events.GpuLimitsSet)
    assert (reported.max_gpus, reported.until_s) == (answer.max_gpus, answer.until_s)
    assert reported.minimum_satisfactory_share == answer.minimum_satisfactory_share


def test_a_resubmission_finds_its_job_under_gpu_limits() -> None:
    history = slack(8)
    scaled(history, command(max_gpus=2))
    assert history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 400.0)) == ()


def test_a_promise_at_risk_clears_the_gpu_limits_of_promised_jobs() -> None:
    history = slack(8)
    spare = {"job_class": JobClass.BEST_EFFORT, "deadline_s": None}
    history.decided(ADMISSION, submit("b", deadline_s=NOW_S + 500.0), submit("c", **spare))
    scaled(history, command(min_gpus=2))
    scaled(history, command("c", max_gpus=1))
    late = events.JobAtRisk(
        job_id="b", generation=0, projected_finish_s=None, deadline_s=NOW_S + 500.0, at_s=NOW_S + 1.0
    )
    history.then(late)
    (over,) = history.decided(ADMISSION, now_s=NOW_S + 1.0)
    assert over == events.GpuLimitsCleared(job_id="a", reason="the promise of b is at risk", at_s=NOW_S + 1.0)
    assert set(history.state.gpu_limits) == {"c"}  # it takes no promised GPUs
    scaled(history, command(min_gpus=2), NOW_S + 2.0)


def test_the_gpu_limits_of_an_ended_job_are_forgotten() -> None:
    history = slack(8)
    scaled(history, command(max_gpus=1, until_s=NOW_S + 50.0))
    assert load(dump(history.state)) == history.state
    history.decided(ADMISSION, CancelJob(job_id="a", tenant="lab"))
    assert not history.state.gpu_limits
    assert ADMISSION.wake_at_s(history.state) is None
    assert "ended already" in rejected(history, command(max_gpus=2)).explanation


# --- rejections------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (command("aa", min_gpus=2), "has no such job; did you mean a? `eflow jobs --all` lists them"),
        (command(tenant="other", min_gpus=2), "tenant other has no such job; `eflow jobs --all` lists them"),
        (command(min_gpus=2, until_s=NOW_S - 3.0), "3 s in the past"),
        (
            command(min_gpus=3, max_gpus=3),
            "min_gpus: 3 is none of the numbers of GPUs that a job gets, 1, 2, 4, 8, ...: choose 2 or 4",
        ),
        (command(min_gpus=16), "it runs on 1, 2, 4 or 8 GPUs here; the pool has 8; 8 would be possible"),
        (
            command(min_gpus=11),
            "11 GPUs mean 16: jobs get 1, 2, 4, 8, ... GPUs; it runs on 1, 2, 4 or 8 GPUs here; the pool has 8",
        ),
        (command(min_gpus=8), "it runs on 2..4 GPUs only, as its user says; 4 would be possible"),
        (command("one", min_gpus=2), "it runs on 1 GPU only, as its user says; 1 would be possible"),
        (command(max_gpus=1), "it runs on 2..4 GPUs only, as its user says; 2 would be possible"),
    ],
)
def test_invalid_gpu_limits_are_rejected_with_an_explanation(asked: SetGpuLimits, words: str) -> None:
    own: dict[str, Any] = {"min_gpus": 2, "max_gpus": 4} if asked.min_gpus == 8 or asked.max_gpus == 1 else {}
    history = pool(8)
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 400.0, **own))
    history.decided(ADMISSION, submit("one", deadline_s=NOW_S + 400.0, max_gpus=1))
    explanation = rejected(history, asked).explanation
    assert words in explanation


def test_more_gpu_seconds_count_for_the_quota() -> None:
    curves = {"linear/b64": {1: 1.0, 2: 1.2, 4: 1.3}}
    quota = TenantQuota(max_gpu_hours_per_day=0.05)  # 180 GPU-seconds
    history = slack(8, curves=curves, quotas={"lab": quota})
    answer = rejected(history, command(min_gpus=4))
    assert "GPU-hours" in answer.explanation
    free = slack(8, curves=curves)
    assert scaled(free, command(min_gpus=4)).gpu_seconds > 150.0


# --- what users see ----------------------------------------------------------------------------------


def test_the_job_history_and_the_list_of_jobs_show_gpu_limits() -> None:
    history = slack(8)
    shares(history)
    entries, before = [], history.state

    def happened(event: Any) -> None:
        decided = PlanDecided(service="admission", based_on=0, now_s=NOW_S, events=(event,))
        entries.append((len(entries) + 1, NOW_S, decided))

    answer = scaled(history, command(max_gpus=2, until_s=NOW_S + 50.0))
    (view,) = job_views(history.state, NOW_S)
    assert (view.gpu_range, view.bound) == ("..2", history.state.gpu_limits["a"])
    happened(
        events.JobAdmitted(
            job_id="a",
            tenant="lab",
            spec=before.live_jobs["a"].spec,  # pyright: ignore[reportArgumentType]
            deadline_s=NOW_S + 400.0,
            minimum_satisfactory_share=(),
            gpu_seconds=1.0,
            at_s=NOW_S,
        )
    )
    happened(answer)
    happened(events.GpuLimitsRejected(job_id="a", explanation="no; 2 could be had", num_gpus=2, at_s=NOW_S))
    happened(events.GpuLimitsCleared(job_id="a", reason="its time is over", at_s=NOW_S))
    reported = [sentence.text for sentence in job_history(entries, "a")]
    assert reported[1].startswith("its operator limited it to at most 2 GPUs until ")
    assert reported[1].endswith(" keep its deadline")
    assert reported[2:] == [
        "the request to scale it was rejected: no; 2 could be had",
        "its GPU limits were cleared: its time is over",
    ]


# --- GPUs that are given up by name ------------------------------------------------------------------------


def held(history: History, job_id: str = "a") -> set[str]:
    return {f"{gpu.node_id}:{gpu.gpu_index}" for gpu in history.state.live_jobs[job_id].gpus}


def named(*names: str, **changes: Any) -> SetGpuLimits:
    return command(without_gpus=gpus(*names), **changes)


@pytest.mark.parametrize(
    ("given_up", "most", "remaining"),
    [
        (("node-0:3",), 2, {"node-0:0", "node-0:1"}),
        (("node-0:0",), 2, {"node-0:1", "node-0:2"}),
        (("node-0:0", "node-0:2"), 2, {"node-0:1", "node-0:3"}),
        (("node-0:0", "node-0:1", "node-0:2"), 1, {"node-0:3"}),
    ],
    ids=["the last", "the first", "one of each pair", "all but one"],
)
def test_a_job_gives_up_exactly_the_named_gpus_and_keeps_others_that_it_holds(
    given_up: tuple[str, ...], most: int, remaining: set[str]
) -> None:
    history = slack(4, 4, curves={"linear/b64": {1: 1.0, 2: 2.0, 4: 4.0}}, stop_free=True)
    assert shares(history) == {"a": 4}
    assert held(history) == {f"node-0:{index}" for index in range(4)}
    history.started("a")
    answer = scaled(history, named(*given_up))
    assert (answer.max_gpus, answer.without_gpus) == (most, gpus(*given_up))
    assert shares(history) == {"a": most}
    assert held(history) == remaining
    assert history.state.live_jobs["a"].is_switching


def test_fewer_than_remain_may_be_asked_for_and_not_more() -> None:
    for asked, most in ((1, 1), (4, 2)):
        history = slack(4)
        shares(history)
        assert scaled(history, named("node-0:3", max_gpus=asked)).max_gpus == most


def test_a_job_gives_up_a_node_and_grows_elsewhere_only() -> None:
    history = slack(2, 2, 4, curves={"linear/b64": {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}})
    assert shares(history) == {"a": 8}
    answer = scaled(history, command(without_nodes=("node-0", "node-1")))
    assert (answer.max_gpus, answer.without_gpus) == (4, gpus("node-0:0", "node-0:1", "node-1:0", "node-1:1"))
    assert shares(history) == {"a": 4}
    assert held(history) == {f"node-2:{index}" for index in range(4)}


def suspended_and_resumed(*others_hold: str) -> set[str]:
    """GPUs of a job that gave up the second GPU, lost its share and gets one again; other jobs hold these then."""
    history = slack(2, 2, curves={"linear/b64": {1: 1.0, 2: 2.0}})
    shares(history)
    on_node = next(iter(held(history))).partition(":")[0]
    scaled(history, named(f"{on_node}:1"))
    assert shares(history) == {"a": 1}
    assert held(history) == {f"{on_node}:0"}
    job = history.state.live_jobs["a"]
    without = fast_replace(job, gpus=(), num_gpus=1)
    other = fast_replace(
        job, job_id="b", gpus=gpus(*(f"{on_node}:0" if name == "own" else name for name in others_hold))
    )
    other = fast_replace(other, num_gpus=len(other.gpus))
    live = history.state.live_jobs.set("a", without).set("b", other)
    history.state = fast_replace(history.state, live_jobs=live)
    history.decided(PLACEMENT)
    return {name.replace(on_node, "its") for name in held(history)}


def test_what_was_given_up_comes_back_only_if_too_few_others_are_free() -> None:
    """A promise must not wait because of a name."""
    assert suspended_and_resumed("own", "node-1:0") == {"node-1:1"}
    assert suspended_and_resumed("own", "node-1:0", "node-1:1") == {"its:1"}


def test_the_released_job_may_hold_what_it_had_given_up() -> None:
    history = slack(4)
    shares(history)
    scaled(history, named("node-0:3", until_s=NOW_S + 50.0))
    assert shares(history) == {"a": 2}
    history.decided(ADMISSION, now_s=NOW_S + 50.0)
    assert shares(history, NOW_S + 50.0) == {"a": 4}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (
            lambda: named("node-1:0"),
            "it has no GPUs to give up on node-1:0: it holds node-0:0,1,2,3",
        ),
        (
            lambda: command(without_nodes=("node-1", "gone")),
            "it has no GPUs to give up on node-1, gone: it holds node-0:0,1,2,3",
        ),
        (
            lambda: command(without_nodes=("node-0",)),
            "it would hold no GPU of its share any more; name fewer, or cancel it",
        ),
        (lambda: named("node-0:1", min_gpus=2), "cannot ask for more with the same limits"),
    ],
    ids=["not held", "no such node", "nothing remains", "more and fewer"],
)
def test_what_a_job_cannot_give_up_is_rejected_with_what_it_holds(asked: Any, why: str) -> None:
    history = slack(4, 1, curves={"linear/b64": {1: 1.0, 2: 2.0, 4: 4.0}})
    shares(history)
    assert why in rejected(history, asked()).explanation


def test_a_job_that_waits_has_nothing_to_give_up() -> None:
    history = slack(4)
    assert "it holds none now" in rejected(history, named("node-0:0")).explanation


def test_a_promise_that_the_rest_cannot_keep_says_how_many_must_remain() -> None:
    history = pool(4, curves={"linear/b64": {1: 1.0, 2: 2.0, 4: 4.0}})
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 60.0))
    assert shares(history) == {"a": 4}
    answer = rejected(history, named("node-0:0", "node-0:1", "node-0:2"))
    assert answer.num_gpus == 2
    assert answer.explanation.endswith("could not be kept; it would be possible if 2 remained: name fewer")
    scaled(history, named("node-0:0"))


def test_a_job_that_needs_four_gpus_gives_up_none() -> None:
    history = pool(4)
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 400.0, min_gpus=4))
    shares(history)
    assert "it runs on 4.. GPUs only, as its user says" in rejected(history, named("node-0:0")).explanation


def test_the_same_names_again_have_no_effect() -> None:
    history = slack(4)
    shares(history)
    scaled(history, named("node-0:3"))
    shares(history)
    assert history.decided(ADMISSION, named("node-0:3")) == ()
    again = idempotent_reply(history.state, named("node-0:3"))
    assert isinstance(again, events.GpuLimitsSet)
    assert (again.max_gpus, again.without_gpus) == (2, gpus("node-0:3"))
    assert load(dump(history.state)).gpu_limits == history.state.gpu_limits


def test_the_history_names_what_was_given_up() -> None:
    history = slack(4)
    shares(history)
    scaled(history, named("node-0:3"))
    shares(history)
    entries = [(sequence, NOW_S, message) for sequence, message in enumerate(history.messages, 1)]
    texts = [entry.text for entry in job_history(entries, "a")]
    assert any(text.startswith("its operator limited it to at most 2 GPUs and none of node-0:3: ") for text in texts)
    assert texts[-2] == ("its share shrinks to 2 GPUs from 4: it was limited to at most 2 GPUs and none of node-0:3")
