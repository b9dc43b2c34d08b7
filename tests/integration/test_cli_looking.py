"""`eflow jobs`, `watch`, `events`, `why`, `replay` and `logs`: what the ledger and the log files say."""

import asyncio
import json
import signal
from typing import Any

import pytest

from elasticflow.cli.app import INTERRUPTED
from elasticflow.shared.messages import events
from tests.support.command_line import POOL, WAIT_S, FrontDoor


async def test_jobs_and_nodes_show_what_the_ledger_says(door: FrontDoor) -> None:
    await door.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    await door.place("j1", "node-0:0", "node-0:1")
    await door.train("j1", iteration=40)
    (job,) = (await door.eflow("jobs", "--json")).value
    assert (job["activity"], job["iteration"], job["gpus"]) == ("running", 40, ["node-0:0", "node-0:1"])
    assert job["margin_s"] == pytest.approx(job["deadline_s"] - job["expected_finish_s"])
    nodes = (await door.eflow("nodes", "--json")).value
    assert [node["jobs"] for node in nodes] == [["j1", "j1", "", ""], ["", "", "", ""]]
    shown = await door.eflow("jobs")
    assert "40/100" in shown.out
    assert "\x1b" not in shown.out
    picture = await door.eflow("watch", "--once")
    assert "2/8 GPUs in use" in picture.out


async def test_watch_in_a_pipe_prints_a_line_for_each_change(door: FrontDoor) -> None:
    await door.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    process = await door.start("watch")
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        assert b"j1  waiting" in await process.stdout.readline()
        await door.place("j1", "node-0:0", "node-0:1")
        while b"starting  2 GPUs" not in await process.stdout.readline():
            pass
        await door.train("j1", iteration=40)
        while b"running" not in await process.stdout.readline():
            pass
        process.send_signal(2)
        _, err = await process.communicate()
    assert process.returncode == 130
    assert err == b""


async def test_events_can_be_narrowed_to_a_job(door: FrontDoor) -> None:
    await door.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    await door.place("j1", "node-0:0")
    rows = (await door.eflow("events", "--job", "j1", "--json")).value
    assert [row["type"] for row in rows] == ["JobAdmitted", "AllocationDecided", "PlacementDecided"]
    lines = (await door.eflow("events", "--from", "2")).out.splitlines()
    assert lines[0].split()[0] == "2"


async def test_why_tells_the_same_story_from_the_bus_and_from_a_file(door: FrontDoor) -> None:
    await door.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    await door.place("j1", "node-0:0", "node-0:1")
    await door.train("j1", iteration=40)
    exported = await door.eflow("events", "export", "run.ledger", "--json")
    assert exported.value["messages"] == await door.bus.last_sequence(POOL)
    live = await door.eflow("explain", "j1")
    assert live.out == (await door.eflow("explain", "j1", "--file", "run.ledger", NATS_URL="")).out
    assert "submitted by default: line:Line, 100 iterations of 64 samples" in live.out
    assert "generation 1 is placed on node-0:0,1" in live.out


async def test_replay_follows_the_live_ledger(door: FrontDoor) -> None:
    following = await door.start("replay", "--follow", "--json")
    out = following.stdout
    assert out is not None

    async def until_event(name: str) -> dict[str, Any]:
        while True:
            row = json.loads(await out.readline())
            if row["event"] == name:
                return row

    async with asyncio.timeout(WAIT_S):
        assert (await until_event("PoolConfigured"))["sequence"] == 1
        await door.tell(
            events.NodeJoined(node_id="late", incarnation="first", num_gpus=1, device="cpu", at_s=door.now_s)
        )
        while (await until_event("NodeJoined"))["sequence"] != await door.bus.last_sequence(POOL):
            pass
        following.send_signal(signal.SIGINT)
        _, complaints = await following.communicate()
    assert following.returncode == INTERRUPTED
    assert b"Traceback" not in complaints, complaints.decode()


async def test_replay_agrees_with_the_live_pool(door: FrontDoor) -> None:
    await door.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    replayed = await door.eflow("replay", "--json")
    assert [job["job_id"] for job in replayed.value["jobs"]] == ["j1"]
    verified = await door.eflow("replay", "--verify")
    assert verified.status == 0, verified.out + verified.err


async def test_logs_come_from_the_files_or_else_from_the_ledger(door: FrontDoor) -> None:
    await door.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    await door.place("j1", "node-0:0")
    await door.tell(
        events.JobFailed(
            job_id="j1", generation=1, error="ValueError: nan", traceback="Traceback: here", at_s=door.now_s
        )
    )
    from_ledger = await door.eflow("logs", "j1")
    assert "Traceback: here" in from_ledger.out
    folder = door.folder / "logs" / "j1"
    folder.mkdir(parents=True)
    (folder / "g1-r0.log").write_text("started\nTraceback (most recent call last)\n")
    (folder / "g1-r1.log").write_text("other")  # it died before the line was whole
    whole = await door.eflow("logs", "j1")
    assert whole.out.splitlines() == [
        "g1-r0 | started",
        "g1-r0 | Traceback (most recent call last)",
        "g1-r1 | other",
    ]
    assert (await door.eflow("logs", "j1", "--rank", "1")).out == "g1-r1 | other\n"


async def test_following_logs_ends_with_the_job(door: FrontDoor) -> None:
    await door.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    log = door.folder / "logs" / "j1" / "g1-r0.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    process = await door.start("logs", "-f", "j1", "--json")
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        assert json.loads(await process.stdout.readline()) == {"line": "g1-r0 | one"}
        with log.open("a") as file:
            file.write("two\nthr")
        assert json.loads(await process.stdout.readline()) == {"line": "g1-r0 | two"}
        await door.eflow("cancel", "j1", "--reason", "enough")
        rest, _ = await process.communicate()
    last, end = rest.splitlines()
    assert json.loads(last) == {"line": "g1-r0 | thr"}
    assert json.loads(end)["job_id"] == "j1"
    assert process.returncode == 0
