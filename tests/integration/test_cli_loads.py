"""`eflow loads`, `suits`, `cancel`, `explain`, `watch` and `nodes` on one pool with padding loads."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.shared.messages import events
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from testbed.command_line import POOL, CommandLinePool, command_line_pool

pytestmark = pytest.mark.asyncio(loop_scope="module")

FOLD = LoadSpec(task_function="proteins:fold", task_s=0.001)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cli(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CommandLinePool]:
    server = EmbeddedServer(tmp_path_factory.mktemp("nats"))
    server.start()
    async with command_line_pool(server.url, tmp_path_factory.mktemp("user")) as cli:
        yield cli
    server.kill()


async def opened(cli: CommandLinePool, load_id: str, spec: LoadSpec = FOLD) -> None:
    async with Client.connect(Endpoint(nats_url=cli.url, pool=POOL)) as client:
        await client.open_load(spec, load_id=load_id)


async def sealed(cli: CommandLinePool, load_id: str, num_tasks: int) -> None:
    async with Client.connect(Endpoint(nats_url=cli.url, pool=POOL)) as client:
        await client.seal_load(load_id, num_tasks)


async def test_loads_are_listed_with_their_progress(cli: CommandLinePool) -> None:
    await opened(cli, "listed")
    await sealed(cli, "listed", 5_000)
    await cli.append(events.LoadProgressed(load_id="listed", num_results=1_250, at_s=cli.now_s))
    (view,) = listed((await cli.eflow("loads", "--json")).value)
    assert (view["phase"], view["num_results"], view["num_tasks"]) == ("sealed", 1_250, 5_000)
    (line,) = (line for line in (await cli.eflow("loads")).out.splitlines() if "listed" in line)
    assert ("1,250/5,000" in line, "proteins:fold" in line) == (True, True)
    watched = await cli.eflow("watch", "--once")
    assert "listed" in watched.out
    (watched_view,) = listed((await cli.eflow("watch", "--once", "--json")).value["loads"])
    assert watched_view["num_results"] == 1_250
    nodes = await cli.eflow("nodes", "--json")
    assert [node["num_padding_gpus"] for node in nodes.value] == [4, 4]


def listed(views: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [view for view in views if view["load_id"] == "listed"]


async def test_a_load_is_cancelled_and_its_history_says_so(cli: CommandLinePool) -> None:
    await opened(cli, "stopped")
    cancelled = await cli.eflow("cancel", "stopped", "--reason", "wrong model", "--json")
    assert cancelled.value == {"load_id": "stopped", "cancelled": True, "explanation": ""}
    assert "stopped" not in (await cli.eflow("loads")).out
    assert "stopped" in (await cli.eflow("loads", "--all")).out
    lines = (await cli.eflow("explain", "stopped")).out.splitlines()
    assert "opened by default: proteins:fold, tasks of 0.001 s" in lines[0]
    assert lines[-1].endswith("cancelled, with 0 results counted: wrong model")


async def test_a_rejected_load_is_explained(cli: CommandLinePool) -> None:
    await opened(cli, "costly", LoadSpec(task_function="proteins:fold", task_s=0.001, overhead_s=0.5))
    (row,) = (await cli.eflow("explain", "costly", "--json")).value
    assert row["type"] == "LoadRejected"
    assert "default requested it; rejected (useful_share): tasks of 0.001 s would use" in row["text"]


async def test_a_load_that_has_finished_cannot_be_cancelled(cli: CommandLinePool) -> None:
    await opened(cli, "done")
    await sealed(cli, "done", 2)
    await cli.append(events.LoadFinished(load_id="done", num_results=2, at_s=cli.now_s))
    late = await cli.eflow("cancel", "done")
    assert (late.status, late.out) == (1, "not cancelled: done: it has finished already\n")


async def test_a_name_that_is_neither_a_job_nor_a_load_is_unknown(cli: CommandLinePool) -> None:
    cancelled = await cli.eflow("cancel", "nothing", "--json")
    assert cancelled.status == 1
    assert cancelled.value["job_id"] == "nothing"
    assert "has no such job" in cancelled.value["explanation"]
    explained = await cli.eflow("explain", "nothing")
    assert (explained.status, "unknown job 'nothing'" in explained.err) == (1, True)


async def test_a_live_job_has_precedence_over_a_load_of_its_name(cli: CommandLinePool) -> None:
    await opened(cli, "twice")
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "twice")
    assert "job_id" in (await cli.eflow("cancel", "twice", "--json")).value
    assert "load_id" in (await cli.eflow("cancel", "twice", "--json")).value


async def test_the_pool_predicts_as_admission_does(cli: CommandLinePool) -> None:
    pays = await cli.eflow("suits", "--task", "1s", "--json")
    assert (pays.status, pays.value["price_ratio"]) == (0, 0.1)
    not_here = await cli.eflow("suits", "--task", "1s", "--overhead", "2h")
    assert not_here.status == 1
    assert not_here.out.splitlines()[-1].startswith("it does not pay: ")


async def test_a_file_of_windows_needs_no_pool(cli: CommandLinePool) -> None:
    (cli.folder / "windows.csv").write_text("gpu,start_s,end_s\na,0,60\n")
    task = ("--task", "10.9s", "--overhead", "2.8s", "--start-stop", "7s", "--windows", "windows.csv")
    shown = await cli.eflow("suits", *task, NATS_URL="nats://127.0.0.1:9")
    assert shown.status == 0
    assert shown.out.splitlines()[1] == "useful share  54.5%"
    costly = await cli.eflow("suits", *task, "--price-ratio", "0.6")
    assert costly.status == 1


@pytest.mark.parametrize("option", [("--task", "0s"), ("--task", "soon"), ("--task", "1s", "--price-ratio", "2")])
async def test_wrong_usage_is_named(cli: CommandLinePool, option: tuple[str, ...]) -> None:
    assert (await cli.eflow("suits", *option)).status == 2
