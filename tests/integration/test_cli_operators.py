"""Operators' commands over a real server: GPU limits, throughput profiles and checkpoints."""

import asyncio
import json
from typing import Any

import elasticflow
from elasticflow.shared.messages import events
from testbed.command_line import JOB_FILE, WAIT_S, CommandLinePool
from testbed.histories import LINEAR


async def test_gpu_limits_from_the_command_to_their_end(cli: CommandLinePool) -> None:
    command = (
        "submit",
        "line.py",
        "--iterations",
        "2000",
        "--deadline",
        "1400s",
        "--name",
        "j1",
        "--gpus",
        "1..4",
    )
    submitted = await cli.eflow(*command)
    assert submitted.status == 0, submitted.out + submitted.err
    refused = await cli.eflow("scale-in", "j1", "1")
    assert refused.status == 1
    assert refused.out.splitlines()[-1] == "  take it  eflow scale-in j1 2"
    taken = await cli.eflow("scale-in", "j1", "2", "--for", "1h")
    assert taken.status == 0
    assert taken.out.startswith("scaled  j1: at most 2 GPUs until ")
    shown = await cli.eflow("jobs")
    assert "- of ..2" in shown.out
    assert "clear that with: eflow scale-in j1 --release" in shown.out
    out = await cli.eflow("scale-out", "j1", "--json")
    assert (out.status, out.value["scaled"], out.value["min_gpus"]) == (0, True, 2)
    released = await asyncio.to_thread(elasticflow.release, "j1", nats_url=cli.url)
    assert isinstance(released, events.GpuLimitsCleared)
    again = await cli.eflow("scale-out", "j1", "--release", "--json")
    assert (again.status, again.value["scaled"]) == (1, False)
    types = [entry["type"] for entry in json.loads((await cli.eflow("explain", "j1", "--json")).out)]
    assert types == [
        "JobAdmitted",
        "GpuLimitsRejected",
        "GpuLimitsSet",
        "GpuLimitsSet",
        "GpuLimitsCleared",
        "GpuLimitsRejected",
    ]
    verified = await cli.eflow("replay", "--verify")
    assert verified.status == 0, verified.out + verified.err


async def test_a_job_gives_up_gpus_by_name(cli: CommandLinePool) -> None:
    await cli.eflow(
        "submit", "line.py", "--iterations", "2000", "--deadline", "3000s", "--name", "j1", "--gpus", "1..4"
    )
    waits = await cli.eflow("scale-in", "j1", "--gpu", "node-0:3")
    assert (waits.status, "it holds none now" in waits.out) == (1, True)
    wrong = await cli.eflow("scale-in", "j1", "--gpu", "node-0")
    assert (wrong.status, "write node-1:3" in wrong.err) == (2, True)
    both = await cli.eflow("scale-in", "j1", "--release", "--node", "node-0")
    assert (both.status, "so it names no GPUs" in both.err) == (2, True)
    await cli.place("j1", "node-0:0", "node-0:1", "node-0:2", "node-0:3")
    taken = await cli.eflow("scale-in", "j1", "--gpu", "node-0:3", "--gpu", "node-0:1", "--json")
    assert (taken.status, taken.value["scaled"], taken.value["max_gpus"]) == (0, True, 2)
    assert taken.value["without_gpus"] == [["node-0", 3], ["node-0", 1]]
    assert "j1 is limited to at most 2 GPUs and none of node-0:3,1; clear that with" in (await cli.eflow("jobs")).out
    elsewhere = await cli.eflow("scale-in", "j1", "--node", "node-1", "--for", "1h")
    assert elsewhere.status == 1
    assert "it has no GPUs to give up on node-1: it holds node-0:0,1,2,3" in elsewhere.out
    assert "none of node-0:3,1" in (await cli.eflow("explain", "j1")).out
    by_call = await asyncio.to_thread(elasticflow.scale, "j1", without="node-0:2,3 node-0:0", nats_url=cli.url)
    assert isinstance(by_call, events.GpuLimitsSet)
    assert by_call.max_gpus == 1


async def test_gpu_limits_expire(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    scaled = await cli.eflow("scale-in", "j1", "1", "--for", "0.5s", "--json")
    assert scaled.value["max_gpus"] == 1
    async with asyncio.timeout(WAIT_S):
        while (await cli.eflow("jobs", "--json")).value[0]["bound"] is not None:
            pass
    assert "its GPU limits were cleared: they have expired" in (await cli.eflow("explain", "j1")).out


async def test_a_curve_is_shown_of_a_job_and_of_a_file(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    of_job = await cli.eflow("profile", "j1", "--json")
    assert {point["num_gpus"]: point["speedup"] for point in of_job.value["points"]} == LINEAR
    of_file = await cli.eflow("profile", "line.py", "--gpus", "..2")
    assert of_file.status == 0, of_file.err
    assert "linear/b64, 64 samples an iteration" in of_file.out
    assert of_file.out.count("not in ..2") == 2
    (cli.folder / "endless.py").write_text(JOB_FILE.replace("    max_iterations = 100\n", ""))
    without_end = await cli.eflow("profile", "endless.py")
    assert without_end.status == 0, without_end.err
    unknown = await cli.eflow("profile", "unknown", "--json")
    assert (unknown.status, "unknown job 'unknown'" in unknown.value["error"]) == (1, True)
    assert [job["job_id"] for job in (await cli.eflow("jobs", "--all", "--json")).value] == ["j1"]


async def test_a_checkpoint_is_requested_and_reported_when_it_is_complete(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    none_yet = await cli.eflow("checkpoint", "j1")
    assert (none_yet.status, none_yet.out) == (1, "no checkpoint: j1 has written none so far\n")
    await cli.place("j1", "node-0:0", "node-0:1")
    await cli.train("j1", iteration=40)
    asking = asyncio.create_task(cli.beside("checkpoint", "j1"))
    async with asyncio.timeout(WAIT_S):
        newest: dict[str, Any] = {}
        while newest.get("type") != "CheckpointRequested":
            newest = (await cli.eflow("events", "--job", "j1", "--json")).value[-1]
        written = events.CheckpointWritten(
            job_id="j1",
            request=newest["sequence"],
            iteration=41,
            num_bytes=1_200,
            file="/data/41.ckpt",
            at_s=cli.now_s + 3.0,
        )
        await cli.append(written)
        ran = await asking
    assert ran.status == 0
    assert ran.out == "checkpoint  j1: iteration 41\n  1.2 kB in /data/41.ckpt\n"
    assert "checkpoint of iteration 41 written" in (await cli.eflow("explain", "j1")).out
