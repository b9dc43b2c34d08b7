"""The answers on a sweep: table, JSON, exit code, and the wait for the ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.cli import sweep
from elasticflow.cli.command_options import PoolOptions
from elasticflow.cli.decision_output import telling_what_goes_on
from elasticflow.cli.sweep import (
    Answer,
    Member,
    all_good,
    answers_as_json,
    ended_within,
    show_answers,
    submit_all,
    submit_sweep,
)
from elasticflow.errors import NotEnded, Undecided
from elasticflow.shared.errors import Unavailable
from elasticflow.shared.messages.events import JobAdmitted, JobRejected
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.state.job import Job, Phase
from testbed.histories import NOW_S, spec


def member(number: int) -> Member:
    return Member(job_id=f"net-{number}", combination={"lr": number / 10, "deep": True}, spec=spec(), code=None)


def admitted(number: int) -> JobAdmitted:
    return JobAdmitted(
        job_id=f"net-{number}",
        tenant="lab",
        spec=spec(),
        deadline_s=NOW_S + 100.0,
        minimum_satisfactory_share=(NOW_S, NOW_S + 60.0, 2),
        gpu_seconds=120.0,
        at_s=NOW_S,
    )


def rejected(number: int) -> JobRejected:
    return JobRejected(
        job_id=f"net-{number}",
        tenant="lab",
        spec=spec(),
        reason="deadline",
        explanation="it needs more GPUs than are free",
        earliest_deadline_s=NOW_S + 90.0,
        at_s=NOW_S,
    )


def ended(number: int, phase: Phase = Phase.FINISHED, *, at_s: float = NOW_S + 50.0) -> Job:
    return Job(
        job_id=f"net-{number}",
        tenant="lab",
        spec=spec(),
        phase=phase,
        decided_at_s=NOW_S,
        decided_sequence=1,
        admitted_at_s=NOW_S,
        deadline_s=NOW_S + 100.0,
        ended_at_s=at_s,
        explanation="out of memory" if phase is Phase.FAILED else "",
    )


MEMBERS = [member(number) for number in (1, 2, 3)]
ANSWERS: list[Answer] = [admitted(1), rejected(2), Undecided("net-3", 30.0)]


def test_each_job_has_a_row_and_each_reason_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_answers(MEMBERS, ANSWERS, {}, NOW_S)
    head, *rows, first, second, summary = capsys.readouterr().out.splitlines()
    assert head.split() == ["JOB", "LR", "DEEP", "ANSWER", "FINISH"]
    assert [row.split()[:4] for row in rows] == [
        ["net-1", "0.1", "true", "admitted"],
        ["net-2", "0.2", "true", "rejected"],
        ["net-3", "0.3", "true", "undecided"],
    ]
    assert first == "net-2: it needs more GPUs than are free; earliest deadline in 1m 30s"
    assert second.startswith("net-3: admission did not reply about 'net-3' within 30 s")
    assert summary == "1 admitted, 1 rejected, 1 undecided"


def test_an_end_replaces_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    show_answers(MEMBERS[:1], ANSWERS[:1], {"net-1": ended(1, Phase.FAILED)}, NOW_S)
    _, row, reason, summary = capsys.readouterr().out.splitlines()
    assert (row.split()[3], reason, summary) == ("failed", "net-1: out of memory", "1 failed")


def test_json_has_the_hyperparameters_and_the_decision() -> None:
    first, second, third = answers_as_json(MEMBERS, ANSWERS, {"net-1": ended(1)})
    assert (first["hyperparameters"], first["decision"]) == ({"lr": 0.1, "deep": True}, "admitted")
    assert first["end"]["activity"] == "finished"
    assert (second["job_id"], second["decision"], second["reason"]) == ("net-2", "rejected", "deadline")
    assert (third["job_id"], third["decision"]) == ("net-3", "none")
    assert "did not reply" in third["error"]


def test_a_sweep_is_good_if_each_job_is_admitted_and_ends_in_time() -> None:
    assert all_good(ANSWERS[:1], {})
    assert not all_good(ANSWERS[:2], {})
    assert not all_good(ANSWERS[::2], {})
    assert all_good(ANSWERS[:1], {"net-1": ended(1)})
    assert not all_good(ANSWERS[:1], {"net-1": ended(1, at_s=NOW_S + 101.0)})
    assert not all_good(ANSWERS[:1], {"net-1": ended(1, Phase.FAILED)})


class Pool:
    """A client whose pool goes through these states: in each, the jobs that have ended."""

    def __init__(self, *states: dict[str, Job]) -> None:
        self._states = states

    async def state(self) -> Any:
        return SimpleNamespace(job={"net-1": "known"}.get)

    async def states(self) -> AsyncIterator[Any]:
        live = SimpleNamespace(live=True)
        for jobs in self._states:
            yield SimpleNamespace(job=lambda job_id, jobs=jobs: jobs.get(job_id, live))


async def test_the_wait_ends_with_the_last_job_even_if_the_pool_forgets_the_first() -> None:
    forgotten: dict[str, Any] = {"net-1": None, "net-2": ended(2)}
    client: Any = Pool({}, {"net-1": ended(1)}, forgotten)
    assert sorted(await ended_within(client, ["net-1", "net-2"], None)) == ["net-1", "net-2"]
    assert await ended_within(client, [], None) == {}


class Stuck(Pool):
    """Its time is over after the last state."""

    async def submit(self, spec: JobSpec, *, job_id: str, **_: Any) -> JobAdmitted:
        return admitted(int(job_id[-1]))

    async def states(self) -> AsyncIterator[Any]:
        async for state in super().states():
            yield state
        raise TimeoutError


async def test_only_members_whose_names_the_pool_knows_may_take_them() -> None:
    again = dict[str, bool | None]()

    class Asked(Pool):
        async def submit(self, spec: JobSpec, *, job_id: str, **options: Any) -> JobAdmitted:
            again[job_id] = options["again"]
            return admitted(int(job_id[-1]))

    client: Any = Asked()
    await submit_all(client, MEMBERS[:2], [])
    assert again == {"net-1": None, "net-2": False}


async def test_the_wait_is_over_before_all_have_ended() -> None:
    client: Any = Stuck({"net-1": ended(1)})
    assert list(await ended_within(client, ["net-1", "net-2"], 5.0)) == ["net-1"]


def sweep_at(client: Any, monkeypatch: pytest.MonkeyPatch, sent: list[str] | None = None) -> int:
    monkeypatch.setattr(sweep, "run", lambda call, _: asyncio.run(call(client)))
    return submit_sweep(
        tuple(MEMBERS[:2]), PoolOptions(), [] if sent is None else sent, wait=True, timeout_s=5.0, as_json=True
    )


def test_answers_are_printed_even_if_a_job_does_not_end_in_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotEnded, match="'net-2' did not end within 5 s"):
        sweep_at(Stuck({"net-1": ended(1)}), monkeypatch)
    first, second = json.loads(capsys.readouterr().out)
    assert (first["decision"], "end" in first) == ("admitted", True)
    assert (second["decision"], "end" in second) == ("admitted", False)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), Unavailable("nats://lost", "closed")], ids=["ctrl-c", "no server"]
)
def test_who_is_interrupted_learns_which_jobs_were_sent(
    error: BaseException, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    class Lost(Stuck):
        async def submit(self, spec: JobSpec, *, job_id: str, **_: Any) -> JobAdmitted:
            if job_id == "net-2":
                raise error
            return admitted(1)

    with pytest.raises(type(error)), telling_what_goes_on(sent):
        sweep_at(Lost(), monkeypatch, sent)
    assert "`eflow cancel ID` stops one: net-1, net-2" in capsys.readouterr().err
