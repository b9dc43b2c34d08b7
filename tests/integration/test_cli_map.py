"""`eflow map` and `eflow results` as processes on a real pool: results, failures, interruption, detached loads."""

import asyncio
import contextlib
import json
import os
import pickle
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from elasticflow.client.loads import FIRST_TASKS
from elasticflow.shared.state.load import LoadPhase
from testbed.real_pool import POOL, RunningPool
from testbed.terminal_user import ROOT, Ran
from tests.support.shared_pool import stored_results

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAIT_S = 240.0  # far above the usual time
FUNCTIONS = """
def echo(value):
    if value == "bad":
        raise ValueError("no such sample")
    return {1} if value == "set" else value

def large(_):
    return "x" * 200_000
"""


class MapUser:
    """Runs `eflow` in a folder with functions.py, with lines on its standard input."""

    def __init__(self, pool: RunningPool, folder: Path) -> None:
        self.pool, self.folder = pool, folder

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        where = {"NATS_URL": self.pool.url, "EF_POOL": POOL, "PYTHONPATH": str(ROOT)}
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "elasticflow", *arguments),
            cwd=self.folder,
            env=os.environ | where,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def eflow(self, *arguments: str, lines: str = "") -> Ran:
        process = await self.start(*arguments)
        async with asyncio.timeout(WAIT_S):
            out, err = await process.communicate(lines.encode(errors="surrogateescape"))
        assert process.returncode is not None
        return Ran(status=process.returncode, out=out.decode(), err=err.decode())

    async def phase_at_end(self, load_id: str) -> LoadPhase:
        state = await self.pool.when(
            lambda state: load_id in state.loads and not state.loads[load_id].live, f"{load_id} ends"
        )
        return state.loads[load_id].phase


@pytest.fixture
def user(session_pool: RunningPool, tmp_path: Path) -> MapUser:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    return MapUser(session_pool, tmp_path)


@contextlib.asynccontextmanager
async def typing(user: MapUser, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command with a standard input that stays open."""
    process = await user.start(*arguments)
    try:
        async with asyncio.timeout(WAIT_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def type_line(process: asyncio.subprocess.Process, line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line + b"\n")
    await process.stdin.drain()


async def type_without_end(process: asyncio.subprocess.Process) -> None:
    """Lines, until nothing reads them: so there is always one more result to print."""
    with contextlib.suppress(ConnectionError):
        while True:
            await type_line(process, b"y")


async def printed_line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return (await process.stdout.readline()).removesuffix(b"\n")


async def test_results_are_printed_in_the_order_of_the_lines(user: MapUser) -> None:
    lines = [f"line {number}" for number in range(200)]
    ran = await user.eflow("map", "functions.py:echo", "--task", "0.01s", lines="\n".join(lines))
    assert (ran.status, ran.err) == (0, "")
    assert [json.loads(line) for line in ran.out.splitlines()] == lines


async def test_lines_of_json_go_to_an_installed_function_and_results_to_a_file(user: MapUser) -> None:
    (user.folder / "in.jsonl").write_text('[1, 2]\n"three"\n')
    ran = await user.eflow("map", "builtins:len", "in.jsonl", "--json-lines", "--json", "--out", "out.jsonl")
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    written = [json.loads(line) for line in (user.folder / "out.jsonl").read_text().splitlines()]
    assert written == [{"index": 0, "value": 2}, {"index": 1, "value": 5}]


async def test_an_empty_input_prints_nothing(user: MapUser) -> None:
    ran = await user.eflow("map", "functions.py:echo", "--name", "map-empty")
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    assert await user.phase_at_end("map-empty") is LoadPhase.FINISHED


async def test_lines_that_are_not_utf8_come_back(user: MapUser) -> None:
    ran = await user.eflow("map", "functions.py:echo", lines="caf\udce9\r\n")
    assert json.loads(ran.out) == "caf\udce9\r"


async def test_a_failed_task_ends_the_load(user: MapUser) -> None:
    async with typing(user, "map", "functions.py:echo", "--attempts", "2", "--name", "map-bad") as process:
        await type_line(process, b"a\nbad\nc")
        assert process.stdout is not None
        assert process.stderr is not None
        assert await process.wait() == 1
        assert await process.stdout.read() == b'"a"\n'
        message = (await process.stderr.read()).decode()
    assert message.startswith("eflow: task 1 failed 2 times, at last with: ValueError: no such sample\n")
    assert await user.phase_at_end("map-bad") is LoadPhase.CANCELLED


async def test_failed_tasks_and_unprintable_results_are_reported_and_the_load_goes_on(user: MapUser) -> None:
    arguments = ("map", "functions.py:echo", "--attempts", "1", "--keep-going")
    ran = await user.eflow(*arguments, lines="a\nbad\nset\nd\n")
    assert (ran.status, ran.out) == (1, '"a"\n"d"\n')
    assert "task 1 failed 1 times" in ran.err
    assert "the result of task 2 cannot be printed as JSON: Object of type set" in ran.err
    printed = (await user.eflow(*arguments, "--json", lines="bad\na\n")).out.splitlines()
    assert [json.loads(line) for line in printed] == [
        {"index": 0, "error": "ValueError: no such sample"},
        {"index": 1, "value": "a"},
    ]


async def test_results_that_json_cannot_hold_are_written_to_files(user: MapUser) -> None:
    ran = await user.eflow("map", "functions.py:echo", "--pickle", "values", lines="set\n")
    assert (ran.status, ran.out) == (0, '"values/0.pickle"\n')
    assert pickle.loads((user.folder / "values" / "0.pickle").read_bytes()) == {1}


async def test_a_line_that_is_not_json_is_named(user: MapUser) -> None:
    ran = await user.eflow("map", "functions.py:echo", "--json-lines", "--name", "map-broken", lines="1\n2\n{\n")
    assert ran.status == 2
    assert ran.err.startswith("eflow: line 3 of standard input is not JSON: ")
    assert await user.phase_at_end("map-broken") is LoadPhase.CANCELLED


async def test_results_appear_while_the_input_is_open_and_ctrl_c_cancels(user: MapUser) -> None:
    async with typing(user, "map", "functions.py:echo", "--name", "map-typed") as process:
        for word in (b"first", b"second"):
            await type_line(process, word)
            assert json.loads(await printed_line(process)) == word.decode()
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
        assert process.stderr is not None
        assert await process.stderr.read() == b""
    assert await user.phase_at_end("map-typed") is LoadPhase.CANCELLED


async def test_a_reader_that_stops_ends_an_endless_input(user: MapUser) -> None:
    async with typing(user, "map", "functions.py:echo", "--task", "0.001s", "--name", "map-endless") as process:
        writing = asyncio.create_task(type_without_end(process))
        assert await printed_line(process) == b'"y"'
        process.stdout._transport.close()  # type: ignore[union-attr] - as `head` does
        assert await process.wait() == 0
        await writing
    assert await user.phase_at_end("map-endless") is LoadPhase.CANCELLED


async def test_a_detached_load_is_read_later_and_then_deleted(user: MapUser) -> None:
    sent = await user.eflow("map", "functions.py:echo", "--detach", "--name", "map-later", lines="a\nb\nc\n")
    assert (sent.status, sent.out, sent.err) == (0, "map-later\n", "")
    kept = await user.eflow("results", "map-later", "--keep", "--as-completed", "--json")
    values = {line["index"]: line["value"] for line in map(json.loads, kept.out.splitlines())}
    assert (kept.status, values) == (0, {0: "a", 1: "b", 2: "c"})
    read = await user.eflow("results", "map-later")
    assert (read.status, read.out) == (0, '"a"\n"b"\n"c"\n')
    again = await user.eflow("results", "map-later")
    assert (again.status, again.out) == (1, "")
    assert "3 of 3 results of the padding load 'map-later' are not stored" in again.err
    assert await stored_results(user.pool.bus, "map-later", pool=POOL) == []


async def test_results_of_a_load_whose_map_still_runs_are_those_of_the_map(user: MapUser) -> None:
    async with typing(user, "map", "functions.py:echo", "--name", "map-shared") as process:
        await type_line(process, b"first")
        assert await printed_line(process) == b'"first"'
        other = await user.eflow("results", "map-shared")
        assert (other.status, other.out, other.err.count("'map-shared' still runs")) == (1, "", 1)
        await type_line(process, b"second")
        assert await printed_line(process) == b'"second"'


async def test_unprintable_results_of_a_detached_load_are_not_deleted(user: MapUser) -> None:
    await user.eflow("map", "functions.py:echo", "--detach", "--name", "map-sets", lines="set\na\n")
    assert (await user.eflow("results", "map-sets", "--keep-going")).status == 1
    pickled = await user.eflow("results", "map-sets", "--pickle", "sets")
    assert (pickled.status, pickled.out.splitlines()) == (0, ['"sets/0.pickle"', '"sets/1.pickle"'])


async def test_a_detached_load_has_at_most_the_results_that_may_be_stored(user: MapUser) -> None:
    lines = "line\n" * (FIRST_TASKS + 50)
    sent = await user.eflow(
        "map", "functions.py:large", "--detach", "--task", "0.01s", "--name", "map-much", lines=lines
    )
    assert (sent.status, sent.out) == (1, "map-much\n")
    said = re.search(r"only the first (\d+) inputs were sent", sent.err)
    assert said is not None, sent.err
    num_sent = int(said[1])  # fewer where the first results were there before the last of these inputs was sent
    assert 0 < num_sent <= FIRST_TASKS
    read = await user.eflow("results", "map-much", "--out", "much.jsonl")
    assert read.status == 0
    assert len((user.folder / "much.jsonl").read_text().splitlines()) == num_sent


@pytest.mark.parametrize("detach", [(), ("--detach",)])
async def test_a_rejected_load_says_why(user: MapUser, detach: tuple[str, ...]) -> None:
    ran = await user.eflow("map", "functions.py:echo", "--task", "1s", "--overhead", "2h", *detach)
    assert (ran.status, ran.out) == (1, "")
    assert "it does not pay" in ran.err


async def test_unknown_and_cancelled_loads_have_no_results(user: MapUser) -> None:
    unknown = await user.eflow("results", "nothing")
    assert (unknown.status, unknown.err.splitlines()) == (
        1,
        [f"eflow: unknown padding load 'nothing' in pool {POOL}; `eflow loads --all` lists its loads"],
    )
    async with typing(user, "map", "functions.py:echo", "--name", "map-stopped") as process:
        await type_line(process, b"first")
        await printed_line(process)
        process.send_signal(signal.SIGINT)
        await process.wait()
    cancelled = await user.eflow("results", "map-stopped")
    assert (cancelled.status, "was cancelled before its last result" in cancelled.err) == (1, True)
