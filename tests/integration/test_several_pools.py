"""`eflow submit --pools` and `eflow quote --pools`: a front of several pools with real admission services."""

import asyncio
import importlib
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import elasticflow
from elasticflow.client.pool_front import PoolFront, named_pools
from elasticflow.errors import PoolsUnusable
from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import PoolConfig, TenantQuota
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.state.job import Phase
from testbed.command_line import CommandLinePool, command_line_pool
from testbed.histories import LINEAR
from testbed.real_pool import POOL, job, running_pool

GONE = "gone=nats://127.0.0.1:9"  # no server listens there
SUBMIT = ("submit", "line.py", "--iterations", "4000")


@pytest.fixture
async def east(nats_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[CommandLinePool]:
    """A pool of four GPUs, beside `west`, a pool of eight; a third one, `silent`, has no admission service."""
    async with AsyncExitStack() as stack:
        folder = tmp_path / "user"
        folder.mkdir()
        pools = [
            await stack.enter_async_context(command_line_pool(nats_server.url, folder, pool, num_nodes))
            for pool, num_nodes in (("east", 1), ("west", 2))
        ]
        await pools[0].bus.ensure_pool("silent")
        yield pools[0]


async def jobs_of(cli: CommandLinePool, pool: str, *, live: bool = False) -> list[str]:
    words = () if live else ("--all",)
    return [job["job_id"] for job in (await cli.eflow("jobs", *words, "--json", "--pool", pool)).value]


async def test_the_pool_with_the_earliest_deadline_gets_the_job(east: CommandLinePool) -> None:
    ran = await east.eflow(*SUBMIT, "--deadline", "1h", "--name", "j1", "--pools", "east,west")
    assert ran.status == 0, ran.out + ran.err
    assert "pool      west" in ran.out
    assert "admitted  j1" in ran.out
    assert "eflow explain j1 --pool west" in ran.out
    explained = await east.eflow("explain", "j1", "--pool", "west")
    assert len(explained.out.splitlines()) == 1, "the questions of the front are not in the job's history"
    assert "would keep it" in next(line for line in ran.out.splitlines() if line.startswith("east "))
    assert (await jobs_of(east, "east"), await jobs_of(east, "west")) == ([], ["j1"])


async def test_a_loaded_pool_is_passed_over(east: CommandLinePool) -> None:
    filled = await east.eflow(*SUBMIT, "--iterations", "40000", "--deadline", "5200s", "--pool", "west")
    assert filled.status == 0, filled.out
    ran = await east.eflow(*SUBMIT, "--deadline", "1h", "--pools", "west,east", "--json")
    assert (ran.status, ran.value["pool"]) == (0, "east")
    assert {pool["pool"]: pool["decision"] for pool in ran.value["pools"]} == {"west": None, "east": "admitted"}


async def test_a_repeated_submission_starts_the_job_in_no_second_pool(east: CommandLinePool) -> None:
    first = await east.eflow(*SUBMIT, "--deadline", "1h", "--name", "j1", "--pools", "east,west", "--json")
    filled = await east.eflow(*SUBMIT, "--iterations", "40000", "--deadline", "6000s", "--pool", "west")
    assert (first.value["pool"], filled.status) == ("west", 0)
    again = await east.eflow(*SUBMIT, "--deadline", "1h", "--name", "j1", "--pools", "east,west")
    assert again.status == 0, again.out + again.err
    assert "j1 was admitted already" in again.out
    assert "amend" not in (await east.eflow("explain", "j1", "--pool", "west")).out
    assert await jobs_of(east, "east") == []
    other = await east.eflow("submit", "line.py", "--deadline", "1h", "--name", "j1", "--pools", "east,west", "--json")
    assert (other.status, other.value["reason"], other.value["pool"]) == (1, "duplicate", "west")


@pytest.mark.parametrize(("pool", "why"), [(GONE, "no NATS JetStream"), ("silent", "no admission service replies")])
async def test_a_pool_that_does_not_reply_is_named_and_left_out(east: CommandLinePool, pool: str, why: str) -> None:
    ran = await east.eflow(*SUBMIT, "--deadline", "1h", "--pools", f"{pool},east")
    assert ran.status == 0, ran.err
    assert "pool      east" in ran.out
    assert why in ran.out


@pytest.mark.parametrize("pool", [GONE, "silent"])
async def test_a_named_job_that_may_be_in_a_silent_pool_is_not_submitted(
    east: CommandLinePool, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticflow.client.pool_front.PoolFront.timeout_s", 2.0)
    ran = await east.eflow(*SUBMIT, "--deadline", "1h", "--name", "j1", "--pools", f"east,{pool}")
    assert ran.status == 2
    assert "j1 is not submitted, because it may be in a pool that does not reply" in ran.err
    assert await jobs_of(east, "east") == []
    without = await east.eflow(*SUBMIT, "--deadline", "1h", "--name", "j1", "--pools", "east")
    assert without.status == 0, without.err
    known = await east.eflow(*SUBMIT, "--deadline", "1h", "--name", "j1", "--pools", f"east,{pool}")
    assert (known.status, "admitted already" in known.out) == (0, True), known.err


async def test_without_any_reply_the_error_says_so(east: CommandLinePool) -> None:
    ran = await east.eflow(*SUBMIT, "--deadline", "1h", "--pools", f"silent,{GONE},nowhere")
    assert ran.status == 2
    assert "none of the pools replies" in ran.err
    assert "no pool 'nowhere'" in ran.err


async def test_the_next_pool_gets_a_job_that_the_best_one_rejects(east: CommandLinePool) -> None:
    config = PoolConfig(
        resize_cost_s=1.0,
        throughput_margin=0.0,
        curves={"linear/b64": LINEAR},
        default_quota=TenantQuota(max_gpu_hours_per_day=0.001),  # which no quote knows
    )
    west = CommandLinePool(east.url, east.bus, east.folder, "west")
    west._num_appended = 100
    await west.decide("operator", events.PoolConfigured(config=config, at_s=east.now_s))
    ran = await east.eflow(*SUBMIT, "--deadline", "1h", "--name", "j1", "--pools", "east,west", "--json")
    assert (ran.status, ran.value["pool"]) == (0, "east")
    assert {pool["pool"]: pool["decision"] for pool in ran.value["pools"]} == {"east": "admitted", "west": "rejected"}


async def test_if_no_pool_keeps_the_deadline_the_earliest_counteroffer_is_shown(east: CommandLinePool) -> None:
    ran = await east.eflow(*SUBMIT, "--deadline", "9s", "--name", "j1", "--pools", "east,west")
    assert ran.status == 1
    assert "pool      west" in ran.out
    assert "rejected  j1" in ran.out
    take = next(line for line in ran.out.splitlines() if "take it" in line).split("eflow ", 1)[1].split()
    assert ("--pools", "east,west") in itertools.pairwise(take)
    accepted = await east.eflow(*take)
    assert accepted.status == 0, accepted.out + accepted.err
    assert await jobs_of(east, "east") == []


async def test_a_quote_of_several_pools_submits_nothing(east: CommandLinePool) -> None:
    ran = await east.eflow("quote", "line.py", "--deadline", "1h", "--pools", "east,west")
    assert ran.status == 0, ran.err
    assert "would be promised" in ran.out
    assert "--pools east,west" in ran.out
    late = await east.eflow(
        "quote", "line.py", "--iterations", "4000", "--deadline", "9s", "--pools=east,west", "--json"
    )
    assert (late.status, late.value["pool"], late.value["would_be_promised"]) == (1, "west", False)
    assert [pool["num_gpus"] for pool in late.value["pools"]] == [4, 8]
    assert (await jobs_of(east, "east"), await jobs_of(east, "west")) == ([], [])


async def test_waiting_is_for_the_job_in_its_pool(east: CommandLinePool) -> None:
    command = (*SUBMIT, "--deadline", "1h", "--name", "j1", "--pools", "east,west", "--wait", "--timeout", "0.2s")
    ran = await east.eflow(*command, "--json")
    assert (ran.status, ran.value["decision"], ran.value["pool"]) == (2, "admitted", "west")
    assert "'j1' did not end within 0.2 s" in ran.err
    assert (await east.eflow("cancel", "j1", "--pool", "west")).status == 0
    ended = await east.eflow(*command, "--json")
    assert (ended.status, ended.value["decision"]) == (1, "cancelled")


async def test_commands_at_once_with_one_name_leave_one_job(east: CommandLinePool) -> None:
    command = (*SUBMIT, "--deadline", "1h", "--name", "j1")
    ran = await asyncio.gather(
        east.beside(*command, "--pools", "east,west"), east.beside(*command, "--pools", "west,east")
    )
    assert [each.status for each in ran] == [0, 0], ran
    live = [pool for pool in ("east", "west") if "j1" in await jobs_of(east, pool, live=True)]
    assert len(live) == 1
    again = await east.eflow(*command, "--pools", "east,west", "--json")
    assert (again.status, again.value["pool"]) == (0, live[0])


async def test_the_python_interface_says_which_pool_has_the_job(
    east: CommandLinePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(east.folder))
    monkeypatch.delitem(sys.modules, "line", raising=False)  # other tests have files of this name
    line = importlib.import_module("line")
    monkeypatch.setitem(sys.modules, "line", line)
    job = line.Line().set_deadline(within="1h")
    answers = await asyncio.to_thread(elasticflow.quote_of_pools, job, ["east", "west"], nats_url=east.url)
    assert [(answer.pool.name, answer.keeps_deadline) for answer in answers] == [("east", True), ("west", True)]
    chosen = await asyncio.to_thread(elasticflow.submit_to_pools, job, "east,west", job_id="j1", nats_url=east.url)
    assert isinstance(chosen.decision, elasticflow.JobAdmitted)
    assert str(chosen).startswith(f"pool {chosen.pool.name}: admitted j1")
    again = await asyncio.to_thread(elasticflow.submit_to_pools, job, "east,west", job_id="j1", nats_url=east.url)
    assert (again.pool.name, again.earlier is not None) == (chosen.pool.name, True)


# --- four whole pools ----------------------------------------------------------------------------------


@pytest.mark.nightly("the tests above have the front with two pools that train nothing")
async def test_four_pools_of_which_one_ends(tmp_path: Path) -> None:
    """Each has a NATS server, services and a node of its own. The front finds the idle one, which trains the job."""
    async with AsyncExitStack() as stack, AsyncExitStack() as of_last:
        pools = [
            await (of_last if number == 3 else stack).enter_async_context(
                running_pool(tmp_path / f"{number}", num_nodes=1, replicas={})
            )
            for number in range(4)
        ]
        for pool in pools[:3]:
            long = job(max_iterations=20_000)
            quoted = await pool.client.quote(long)
            assert quoted.earliest_deadline_s is not None, quoted.explanation
            tight = replace(long, deadline_in_s=quoted.earliest_deadline_s - quoted.at_s + 2.0)
            assert isinstance(await pool.client.submit(tight, job_id="fills"), events.JobAdmitted)
        named = named_pools([f"{POOL}={pool.url}" for pool in pools])
        front, short = PoolFront(pools=named, tenant="lab"), job(deadline_in_s=600.0)

        first = await front.submit(short, job_id="j1")
        assert (first.pool, type(first.decision)) == (named[3], events.JobAdmitted), first
        assert (await pools[3].ended(["j1"])).ended_jobs["j1"].phase is Phase.FINISHED
        again = await front.submit(short, job_id="j1")
        assert (again.pool, again.decision) == (named[3], first.decision)
        for pool in pools[:3]:
            assert "j1" not in (await pool.client.state()).names

        await of_last.aclose()
        with pytest.raises(PoolsUnusable, match="j1 is not submitted, because it may be in a pool that does not reply"):
            await front.submit(short, job_id="j1")
        other = await front.submit(short)
        assert other.pool in named[:3]
        assert "no NATS" in other.answers[3].problem
        folders = named_pools([str(pool.data_dir) for pool in pools[:3]])
        assert [pool.endpoint.nats_url for pool in folders] == [pool.url for pool in pools[:3]]
        assert (await PoolFront(pools=folders, tenant="lab").submit(short, job_id="j2")).pool in folders
