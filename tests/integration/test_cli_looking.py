"""`eflow jobs`, `watch`, `events`, `explain`, `replay` and `logs`: views of the ledger and of the log files."""

import asyncio
import json
import signal
from typing import Any

import pytest

from elasticflow.shared.library_imports import INTERRUPTED
from elasticflow.shared.messages import events
from testbed.command_line import POOL, WAIT_S, CommandLinePool


async def test_jobs_and_nodes_show_the_state_of_the_ledger(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    await cli.place("j1", "node-0:0", "node-0:1")
    await cli.train("j1", iteration=40)
    (job,) = (await cli.eflow("jobs", "--json")).value
    assert (job["activity"], job["iteration"], job["gpus"]) == ("running", 40, ["node-0:0", "node-0:1"])
    assert job["margin_s"] == pytest.approx(job["deadline_s"] - job["expected_finish_s"])
    nodes = (await cli.eflow("nodes", "--json")).value
    assert [node["jobs"] for node in nodes] == [["j1", "j1", "", ""], ["", "", "", ""]]
    shown = await cli.eflow("jobs")
    assert "40/100" in shown.out
    assert "\x1b" not in shown.out
    picture = await cli.eflow("watch", "--once")
    assert "2/8 GPUs in use" in picture.out


async def test_nodes_show_their_types(cli: CommandLinePool) -> None:
    await cli.append(
        events.NodeJoined(
            node_id="typed",
            incarnation="first",
            num_gpus=2,
            device="cuda",
            gpu_type="T4",
            gpu_memory_bytes=16 << 30,
            at_s=cli.now_s,
        )
    )
    nodes = (await cli.eflow("nodes", "--json")).value
    assert [(node["gpu_type"], node["gpu_memory_bytes"]) for node in nodes] == [("", 0), ("", 0), ("T4", 16 << 30)]
    heading, *rows = (await cli.eflow("nodes")).out.splitlines()
    assert heading.split() == ["NODE", "STATE", "DEVICE", "TYPE", "MEMORY", "FREE", "GPUS", "JOBS"]
    assert rows[2].split()[:6] == ["typed", "alive", "cuda", "T4", "16", "GiB"]
    assert "GPUs by type: 8 of no named type, 2 T4" in (await cli.eflow("watch", "--once")).out


async def test_watch_in_a_pipe_prints_a_line_for_each_change(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    process = await cli.start("watch")
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        assert b"j1  waiting" in await process.stdout.readline()
        await cli.place("j1", "node-0:0", "node-0:1")
        while b"starting  2 GPUs" not in await process.stdout.readline():
            pass
        await cli.train("j1", iteration=40)
        while b"running" not in await process.stdout.readline():
            pass
        process.send_signal(2)
        _, err = await process.communicate()
    assert process.returncode == 130
    assert err == b""


async def test_events_can_be_limited_to_a_job(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    await cli.place("j1", "node-0:0")
    rows = (await cli.eflow("events", "--job", "j1", "--json")).value
    assert [row["type"] for row in rows] == ["JobAdmitted", "AllocationDecided", "PlacementDecided"]
    lines = (await cli.eflow("events", "--from", "2")).out.splitlines()
    assert lines[0].split()[0] == "2"


async def test_explain_prints_the_same_history_from_the_bus_and_from_a_file(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    await cli.place("j1", "node-0:0", "node-0:1")
    await cli.train("j1", iteration=40)
    exported = await cli.eflow("events", "export", "run.ledger", "--json")
    assert exported.value["messages"] == await cli.bus.last_sequence(POOL)
    live = await cli.eflow("explain", "j1")
    assert live.out == (await cli.eflow("explain", "j1", "--file", "run.ledger", NATS_URL="")).out
    assert "submitted by default: line:Line, 100 iterations of 64 samples" in live.out
    assert "generation 1 is placed on node-0:0,1" in live.out


async def test_replay_follows_the_live_ledger(cli: CommandLinePool) -> None:
    following = await cli.start("replay", "--follow", "--json")
    out = following.stdout
    assert out is not None

    async def until_event(name: str) -> dict[str, Any]:
        while True:
            row = json.loads(await out.readline())
            if row["event"] == name:
                return row

    async with asyncio.timeout(WAIT_S):
        assert (await until_event("PoolConfigured"))["sequence"] == 1
        await cli.append(
            events.NodeJoined(node_id="late", incarnation="first", num_gpus=1, device="cpu", at_s=cli.now_s)
        )
        while (await until_event("NodeJoined"))["sequence"] != await cli.bus.last_sequence(POOL):
            pass
        following.send_signal(signal.SIGINT)
        _, complaints = await following.communicate()
    assert following.returncode == INTERRUPTED
    assert b"Traceback" not in complaints, complaints.decode()


async def test_replay_agrees_with_the_live_pool(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    replayed = await cli.eflow("replay", "--json")
    assert [job["job_id"] for job in replayed.value["jobs"]] == ["j1"]
    verified = await cli.eflow("replay", "--verify")
    assert verified.status == 0, verified.out + verified.err


async def test_logs_come_from_the_files_or_else_from_the_ledger(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    await cli.place("j1", "node-0:0")
    await cli.append(
        events.JobFailed(
            job_id="j1", generation=1, error="ValueError: nan", traceback="Traceback: here", at_s=cli.now_s
        )
    )
    from_ledger = await cli.eflow("logs", "j1")
    assert "Traceback: here" in from_ledger.out
    folder = cli.folder / "logs" / "j1"
    folder.mkdir(parents=True)
    (folder / "g1-r0.log").write_text("started\nTraceback (most recent call last)\n")
    (folder / "g1-r1.log").write_text("other")  # the worker died before the end of the line
    first = await cli.eflow("logs", "j1")
    assert [line for line in first.out.splitlines() if "g1-r1" in line] == []
    assert "1 other worker wrote a log, too: --all-workers" in first.err
    whole = await cli.eflow("logs", "j1", "--all-workers")
    assert whole.out.splitlines() == [
        "g1-r0 | started",
        "g1-r0 | Traceback (most recent call last)",
        "g1-r1 | other",
    ]
    assert (await cli.eflow("logs", "j1", "--rank", "1")).out == "g1-r1 | other\n"


async def test_following_logs_ends_with_the_job(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    log = cli.folder / "logs" / "j1" / "g1-r0.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    process = await cli.start("logs", "-f", "j1", "--json")
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        assert json.loads(await process.stdout.readline()) == {"line": "g1-r0 | one"}
        with log.open("a") as file:
            file.write("two\nthr")
        assert json.loads(await process.stdout.readline()) == {"line": "g1-r0 | two"}
        await cli.eflow("cancel", "j1", "--reason", "enough")
        rest, _ = await process.communicate()
    last, end = rest.splitlines()
    assert json.loads(last) == {"line": "g1-r0 | thr"}
    assert json.loads(end)["job_id"] == "j1"
    assert process.returncode == 0
