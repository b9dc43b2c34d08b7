"""`eflow` as its users run it: a process, over a real nats-server, before a real admission service."""

import asyncio
import importlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import elasticflow
from services.admission.service import serve
from shared.errors import NoResponder
from shared.messages import codec, events, subjects
from shared.messages.cluster import PoolConfig
from shared.runtime.clock import SystemClock
from shared.runtime.logs import get_log
from shared.runtime.nats_bus import NatsBus, connect_nats
from shared.runtime.nats_server import EmbeddedServer
from shared.runtime.outbox import subject_of
from shared.runtime.service import Process
from shared.runtime.settings import Settings
from shared.runtime.telemetry import Metrics
from tests.histories import LINEAR, gpus

POOL = "default"
WAIT_S = 60.0
JOB_FILE = """
from elasticflow import ElasticJob

class Line(ElasticJob):
    hyperparameters = {"global_batch_size": 64}
    max_iterations = 100
    model_name = "linear"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """The one JSON value on its stdout."""
        return json.loads(self.out)


class FrontDoor:
    """A pool with two nodes of four GPUs whose curve is known, and the command line before it."""

    def __init__(self, url: str, bus: NatsBus, folder: Path) -> None:
        self.url, self.bus, self.folder = url, bus, folder
        self.now_s = SystemClock().now_s()
        self._told = 0

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
        root = str(Path(__file__).parents[2])
        return kept | {"NATS_URL": self.url, "PYTHONPATH": root, "EF_DATA_DIR": str(self.folder)} | more

    async def start(self, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "elasticflow",
            *arguments,
            cwd=self.folder,
            env=self.environment(**environment),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def eflow(self, *arguments: str, **environment: str) -> Ran:
        process = await self.start(*arguments, **environment)
        async with asyncio.timeout(WAIT_S):
            out, err = await process.communicate()
        assert process.returncode is not None
        assert b"Traceback" not in err, err.decode()
        return Ran(status=process.returncode, out=out.decode(), err=err.decode())

    async def tell(self, *messages: Any) -> None:
        """Append facts, and decisions of the allocator and placement, as the services would."""
        for message in messages:
            self._told += 1
            message_id = f"told-{self._told}"
            data = codec.encode(message, id=message_id, recorded_at_s=self.now_s)
            decided = isinstance(message, events.PlanDecided)
            subject = subjects.plan(POOL) if decided else subject_of(POOL, message)
            await self.bus.append(subject, data, message_id=message_id)

    async def decide(self, service: str, *decided: Any) -> None:
        based_on = await self.bus.last_sequence(POOL)
        await self.tell(
            events.PlanDecided(service=service, based_on=based_on, now_s=self.now_s, events=decided)
        )

    async def place(self, job_id: str, *names: str, generation: int = 1) -> None:
        """Allocation and placement of one job, alone in the pool."""
        share = events.AllocationDecided(
            num_gpus_by_job={job_id: len(names)}, valid_until_s=None, at_s=self.now_s
        )
        placed = events.PlacedJob(job_id=job_id, generation=generation, gpus=gpus(*names))
        await self.decide("allocator", share)
        await self.decide("placement", events.PlacementDecided(placements=(placed,), at_s=self.now_s))

    async def train(self, job_id: str, *, iteration: int, generation: int = 1) -> None:
        """The job has started and come this far."""
        await self.tell(
            events.GenerationStarted(
                job_id=job_id, generation=generation, num_gpus=2, iteration=0, at_s=self.now_s + 1.0
            ),
            events.JobProgressed(
                job_id=job_id,
                generation=generation,
                iteration=iteration,
                iterations_per_s=2.0,
                metrics={"loss": 0.25},
                at_s=self.now_s + 2.0,
            ),
        )


@pytest.fixture
async def door(nats_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[FrontDoor]:
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "line.py").write_text(JOB_FILE)
    made = FrontDoor(nats_server.url, bus, folder)
    config = PoolConfig(resize_cost_s=1.0, throughput_margin=0.0, curves={"linear/b64": LINEAR})
    await made.decide("operator", events.PoolConfigured(config=config, at_s=made.now_s))
    for number in range(2):
        await made.tell(
            events.NodeJoined(
                node_id=f"node-{number}",
                incarnation=f"first-{number}",
                num_gpus=4,
                device="cpu",
                at_s=made.now_s,
            )
        )
    settings = Settings.from_environment({"NATS_URL": nats_server.url, "EF_DATA_DIR": str(folder)})
    process = Process(
        settings=settings,
        bus=await connect_nats(nats_server.url, name="admission"),
        clock=SystemClock(),
        log=get_log("admission"),
        metrics=Metrics("admission", POOL),
    )
    serving = asyncio.create_task(serve(process))
    async with asyncio.timeout(WAIT_S):
        while not await _is_answered(bus):  # noqa: ASYNC110 - a subject can only be asked
            await asyncio.sleep(0.01)
    yield made
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await process.bus.close()
    await bus.close()


async def _is_answered(bus: NatsBus) -> bool:
    """Any question, be it one that nobody understands."""
    try:
        await bus.request(subjects.quote(POOL), b"?", WAIT_S)
    except NoResponder:
        return False
    return True


# --- submit, quote, cancel ------------------------------------------------------------------------------


async def test_a_job_that_fits_is_admitted_with_its_promise(door: FrontDoor) -> None:
    ran = await door.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    assert ran.status == 0, ran.err
    assert "admitted  j1" in ran.out
    assert "deadline" in ran.out
    assert "in 5m 00s" in ran.out
    assert "expected finish" in ran.out


async def test_the_code_of_a_file_lies_in_the_object_store(door: FrontDoor) -> None:
    ran = await door.eflow("submit", "line.py:Line", "--deadline", "300s", "--json")
    spec = ran.value["spec"]
    assert spec["training_function"] == "line:Line"
    archive = await door.bus.get_object("EF_CODE_default", spec["code_digest"])
    assert b"class Line(ElasticJob)" in archive


async def test_a_rejection_offers_commands_that_are_admitted(door: FrontDoor) -> None:
    rejected = await door.eflow(
        "submit", "line.py", "--deadline", "9s", "--name", "j1", "--iterations", "400"
    )
    assert rejected.status == 1
    assert "rejected  j1" in rejected.out
    commands = [line.split("eflow ", 1)[1].split() for line in rejected.out.splitlines() if "take it" in line]
    assert len(commands) >= 2
    for number, command in enumerate(commands):  # each on its own
        assert "--iterations" in command
        name = f"taken-{number}"
        accepted = await door.eflow(*(name if word == "j1-2" else word for word in command))
        assert accepted.status == 0, accepted.out + accepted.err
        assert f"admitted  {name}" in accepted.out
        assert (await door.eflow("cancel", name)).status == 0


async def test_the_same_id_twice_is_one_job(door: FrontDoor) -> None:
    wish = ("submit", "line.py", "--deadline", "300s", "--name", "j1", "--json")
    first, again = await door.eflow(*wish), await door.eflow(*wish)
    assert first.value == again.value
    other = await door.eflow(*wish, "--iterations", "50")
    assert (other.status, other.value["reason"]) == (1, "duplicate")
    assert len((await door.eflow("jobs", "--json")).value) == 1


async def test_options_stand_above_the_class(door: FrontDoor) -> None:
    ran = await door.eflow(
        "submit", "line.py", "--class", "best-effort", "--set", "rate=0.5", "--set", "name=x", "--json"
    )
    spec = ran.value["spec"]
    assert (spec["job_class"], spec["hyperparameters"]) == ("best_effort", {"rate": 0.5, "name": "x"})


async def test_quoting_submits_nothing(door: FrontDoor) -> None:
    ran = await door.eflow("quote", "line.py", "--json")
    assert ran.status == 0, ran.err
    assert ran.value["earliest_deadline_s"] > door.now_s
    assert (await door.eflow("jobs", "--all", "--json")).value == []


async def test_no_quote_without_a_measured_speed_is_a_negative_answer(door: FrontDoor) -> None:
    ran = await door.eflow("quote", "line.py", "--batch", "32")
    assert ran.status == 1
    assert "speed is not known yet" in ran.out


async def test_cancel_tells_whether_there_was_something_to_cancel(door: FrontDoor) -> None:
    await door.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    assert (await door.eflow("cancel", "j1", "--json")).value["cancelled"] is True
    again = await door.eflow("cancel", "j1")
    assert again.status == 0  # the same wish, told again
    nothing = await door.eflow("cancel", "j2")
    assert nothing.status == 1
    assert "no such job" in nothing.out


async def test_waiting_ends_with_the_job(door: FrontDoor) -> None:
    process = await door.start("submit", "line.py", "--deadline", "300s", "--name", "j1", "--wait")
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        while b"admitted" not in await process.stdout.readline():
            pass
    await door.place("j1", "node-0:0", "node-0:1")
    await door.train("j1", iteration=60)
    await door.tell(
        events.JobFinished(
            job_id="j1", generation=1, iteration=100, condition="max_iterations", at_s=door.now_s + 50.0
        )
    )
    async with asyncio.timeout(WAIT_S):
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert "finished  j1: 100 iterations" in out.decode()


async def test_the_same_from_python(door: FrontDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(door.folder))
    job = importlib.import_module("line").Line().set_deadline(within=300)
    where = {"nats_url": door.url}
    quoted = await asyncio.to_thread(elasticflow.quote, job, **where)
    assert quoted.earliest_deadline_s is not None
    admitted = await asyncio.to_thread(elasticflow.submit, job, job_id="j1", **where)
    assert isinstance(admitted, events.JobAdmitted)
    (view,) = elasticflow.jobs(**where)  # blocks this event loop, as a cell of a notebook does
    assert (view.job_id, view.activity) == ("j1", "waiting")
    cancelled = await asyncio.to_thread(elasticflow.cancel, "j1", **where)
    assert isinstance(cancelled, events.JobCancelled)
    assert (await asyncio.to_thread(elasticflow.wait, "j1", **where)).activity == "cancelled"


# --- looking --------------------------------------------------------------------------------------------


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
    live = await door.eflow("why", "j1")
    assert live.out == (await door.eflow("why", "j1", "--file", "run.ledger", NATS_URL="")).out
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
        await following.communicate()


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
    (folder / "g1-r1.log").write_text("other\n")
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
    process = await door.start("logs", "-f", "j1")
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        assert b"one" in await process.stdout.readline()
        with log.open("a") as file:
            file.write("two\n")
        assert b"two" in await process.stdout.readline()
        await door.eflow("cancel", "j1")
        await process.communicate()
    assert process.returncode == 0


# --- what goes wrong ------------------------------------------------------------------------------------


async def test_a_failure_is_one_line_and_an_exit_code(door: FrontDoor) -> None:
    expected: list[tuple[tuple[str, ...], int, str]] = [
        (("jobs", "--nats-url", "nats://127.0.0.1:1"), 2, "no NATS JetStream at nats://127.0.0.1:1"),
        (("jobs", "--pool", "mars"), 2, "no pool 'mars'"),
        (("why", "nobody"), 1, "no job 'nobody'"),
        (("submit", "line.py", "--deadline", "2001-01-01T00:00"), 1, "in the past"),
    ]
    for arguments, status, said in expected:
        ran = await door.eflow(*arguments)
        assert ran.status == status, (arguments, ran)
        assert said in ran.err + ran.out, (arguments, ran)


async def test_a_wrong_token_is_said_so(tmp_path: Path, door: FrontDoor) -> None:
    with EmbeddedServer(tmp_path / "guarded", token="secret") as guarded:
        ran = await door.eflow("jobs", "--nats-url", guarded.url.replace("secret", "guess"))
    assert ran.status == 2
    assert "refuses the credentials" in ran.err
    assert "guess" not in ran.err


async def test_the_plain_nats_example_of_the_docs_runs(door: FrontDoor) -> None:
    page = (Path(__file__).parents[2] / "docs" / "publishing.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    assert '"model_name": "digits-cnn", ' in example
    example = example.replace('"model_name": "digits-cnn"', '"model_name": "linear"').replace("256", "64")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", example, "by-hand", env=door.environment(), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(WAIT_S):
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert "kept as message 1\nJobAdmitted" in out.decode()
    (job,) = (await door.eflow("jobs", "--json")).value
    assert job["job_id"] == "by-hand"
