"""`eflow track` writes what became of each promise, once, into the runs that are there."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from elasticflow.cli import track
from elasticflow.cli.app import app
from elasticflow.shared.state.pool import PoolState
from testbed.histories import NOW_S
from testbed.page_ledger import page_history

AFTER_S = NOW_S + 60.0


class FakeRuns:
    """The runs of some jobs, by identity."""

    def __init__(self, *identities: str) -> None:
        self.identities = set(identities)
        self.asked: list[str] = []
        self.written: list[tuple[str, Mapping[str, str], str]] = []
        self.fails: Exception | None = None

    def write(self, identity: str, words: Mapping[str, str], ending: str) -> bool:
        if self.fails is not None:
            raise self.fails
        self.asked.append(identity)
        if identity in self.identities:
            self.written.append((identity, words, ending))
        return identity in self.identities


@pytest.fixture(scope="module")
def state() -> PoolState:
    return page_history().state


def identity(state: PoolState, job_id: str) -> str:
    job = state.job(job_id)
    assert job is not None
    return job.identity


def eflow(monkeypatch: pytest.MonkeyPatch, runs: FakeRuns, state: PoolState, *arguments: str) -> tuple[int, str]:
    async def now() -> PoolState:
        return state

    def call(write: Any, where: Any) -> None:
        asyncio.run(write(SimpleNamespace(state=now, now_s=lambda: AFTER_S)))

    monkeypatch.setattr(track, "run", call)
    monkeypatch.setattr(track, "MLflowRuns", lambda uri, project: runs)
    result = CliRunner().invoke(app, ["track", "mlflow", *arguments], prog_name="eflow")
    return result.exit_code, result.output


def test_each_run_says_what_became_of_its_job(monkeypatch: pytest.MonkeyPatch, state: PoolState) -> None:
    names = ("kept", "crashed", "running", "risky", "rejected")
    runs = FakeRuns(*(identity(state, name) for name in names if name != "running"))
    status, shown = eflow(monkeypatch, runs, state)
    assert (status, shown) == (0, "3 runs in mlflow\n")
    said = {
        name: (words, ending) for name in names for of, words, ending in runs.written if of == identity(state, name)
    }
    assert said["kept"] == (
        {
            "promise": "kept",
            "deadline": "2027-01-15T08:01:40+00:00",
            "activity": "finished",
            "margin_s": "70.0",
            "restarts": "0",
        },
        "finished",
    )
    assert said["risky"][0].items() >= {"promise": "at risk", "restarts": "0"}.items()
    assert ("margin_s" in said["risky"][0], said["risky"][1]) == (False, "")
    assert (said["crashed"][0]["promise"], said["crashed"][1]) == ("failed", "failed")
    assert said["crashed"][0]["explanation"]


def test_only_the_named_jobs_are_written(monkeypatch: pytest.MonkeyPatch, state: PoolState) -> None:
    runs = FakeRuns(identity(state, "kept"), identity(state, "crashed"))
    assert eflow(monkeypatch, runs, state, "kept", "--json") == (0, '["kept"]\n')
    assert runs.asked == [identity(state, "kept")]


def test_a_service_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch, state: PoolState) -> None:
    runs = FakeRuns()
    runs.fails = ConnectionError("refused")
    status, shown = eflow(monkeypatch, runs, state)
    assert (status, shown) == (2, "eflow: mlflow: ConnectionError: refused\n")


async def test_what_has_not_changed_is_not_written_again(state: PoolState) -> None:
    runs = FakeRuns(identity(state, "kept"), identity(state, "risky"))
    following = track._Following(runs, track.Service.MLFLOW, frozenset())
    await following.write(state, AFTER_S)
    assert len(runs.asked) == 4
    runs.asked.clear()
    await following.write(state, AFTER_S + 1.0)
    assert runs.asked == [identity(state, "running")], "the run of a live job may come later"


async def test_a_follower_waits_for_a_service_that_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: PoolState
) -> None:
    monkeypatch.setattr(track, "_EVERY_S", 0.001)
    before, written = PoolState(), asyncio.Event()

    class Away(FakeRuns):
        def write(self, *of: Any) -> bool:
            if len(self.asked) < 3:
                self.asked.append("")
                raise ConnectionError("refused")
            has_run = super().write(*of)
            loop.call_soon_threadsafe(written.set)
            return has_run

    async def states() -> AsyncGenerator[PoolState, None]:
        yield before
        yield state
        await written.wait()

    async def first() -> PoolState:
        return before

    loop = asyncio.get_running_loop()
    runs = Away(identity(state, "kept"))
    client: Any = SimpleNamespace(state=first, states=states, now_s=lambda: AFTER_S)
    with contextlib.suppress(asyncio.CancelledError):
        await track._follow(client, track._Following(runs, track.Service.MLFLOW, frozenset({"kept"})))
    assert [of for of, *_ in runs.written] == [identity(state, "kept")]
    assert capsys.readouterr().err.count("mlflow: ConnectionError: refused; it is tried again") == 1
