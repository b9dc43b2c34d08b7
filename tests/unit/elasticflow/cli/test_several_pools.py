"""Names of several pools on a command line, and what goes to one pool only."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasticflow.cli.app import app
from elasticflow.cli.job_options import SubmissionOptions
from elasticflow.cli.several_pools import pools_decision_as_json, show_pools_decision
from elasticflow.client.pool_front import MAX_POOLS, NamedPool, PoolAnswer, PoolsDecision, named_pools
from elasticflow.errors import InputUnusable, NoPoolHere
from elasticflow.shared.messages.commands import DeadlineQuoted
from testbed.command_line import JOB_FILE
from testbed.histories import NOW_S
from tests.support.worker_events import admitted

URL = "nats://token@host:4222"


def test_a_name_is_a_pool_of_the_server_and_a_url_another_server() -> None:
    east, west = named_pools("east, west=nats://secret@far:4223", nats_url=URL)
    assert (east.name, east.endpoint.nats_url, east.endpoint.pool) == ("east", URL, "east")
    assert east.words == ("--pool", "east")
    assert (west.name, west.endpoint.pool) == ("west@far:4223", "west")
    assert west.words == ("--nats-url", "nats://secret@far:4223", "--pool", "west")


def test_pools_of_two_servers_may_have_one_name() -> None:
    pools = named_pools(["default=nats://a:4222", "default=nats://b:4222"])
    assert [pool.name for pool in pools] == ["default@a:4222", "default@b:4222"]


def test_a_folder_without_a_running_pool_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoPoolHere, match="--data-dir"):
        named_pools(f"{tmp_path}/.eflow", nats_url=URL)


@pytest.mark.parametrize("pools", ["", ",", "a,a", "a,a=nats://token@host:4222", "x=host", "=nats://host:4222"])
def test_wrong_names_are_refused(pools: str) -> None:
    with pytest.raises(InputUnusable, match=r"^pools: "):
        named_pools(pools, nats_url=URL)


def test_there_is_a_most_number_of_pools() -> None:
    with pytest.raises(InputUnusable, match=f"1 to {MAX_POOLS}"):
        named_pools([f"p{number}" for number in range(MAX_POOLS + 1)], nats_url=URL)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--pool", "east"), "name one pool with it"),
        (("--sweep", "lr=1,2"), "its jobs go to one pool"),
        (("--quote", "q1"), "reserved in one pool"),
        (("--detach",), "waits for their decisions"),
    ],
)
def test_what_goes_to_one_pool_is_refused_before_anything_is_sent(
    words: tuple[str, ...], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "line.py").write_text(JOB_FILE)
    command = ("submit", "line.py", "--deadline", "1h", "--pools", "east,west", *words)
    ran = CliRunner().invoke(app, command, env={"NATS_URL": "nats://127.0.0.1:9", "EF_POOL": "default"})
    assert ran.exit_code == 2
    assert problem in ran.stderr


def test_the_commands_that_follow_name_the_pool_as_the_user_did(capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--nats-url", "nats://host:4222", "--tenant", "lab", "--pools", "east,west")
    options = SubmissionOptions(target="line.py", where=where)
    (east,) = named_pools("east", nats_url="nats://host:4222")
    show_pools_decision(_chosen(east), options)
    assert "eflow explain j1 --nats-url nats://host:4222 --tenant lab --pool east" in capsys.readouterr().out
    (far,) = named_pools("east=nats://far:4222")
    show_pools_decision(_chosen(far), options)
    assert "eflow explain j1 --tenant lab --nats-url nats://far:4222 --pool east" in capsys.readouterr().out


def test_json_has_the_answers_of_all_pools() -> None:
    (east, west) = named_pools("east,west", nats_url=URL)
    chosen = _chosen(east, PoolAnswer(pool=west, problem="no answer within 10 s"))
    value = pools_decision_as_json(chosen)
    assert (value["decision"], value["pool"]) == ("admitted", "east")
    assert [(pool["pool"], pool["earliest_deadline_s"], pool["explanation"]) for pool in value["pools"]] == [
        ("east", NOW_S + 60.0, ""),
        ("west", None, "no answer within 10 s"),
    ]


def _chosen(pool: NamedPool, *others: PoolAnswer) -> PoolsDecision:
    decision = admitted("j1", deadline_s=NOW_S + 100.0)
    quoted = DeadlineQuoted(earliest_deadline_s=NOW_S + 60.0, gpu_seconds=9.0, num_gpus=4, at_s=NOW_S)
    answer = PoolAnswer(pool=pool, quoted=quoted, keeps_deadline=True, decision=decision)
    return PoolsDecision(pool=pool, decision=decision, answers=(answer, *others))
