"""A real pool: `eflow stack` and `eflow exec` reach the workers of a running job, and nobody else's."""

import asyncio
import contextlib
import json
import os
import pty
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from elasticflow.client.running_workers import RunningWorkers
from elasticflow.shared.messages import events, reach, subjects
from elasticflow.shared.messages.events import GpuLimitsSet
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.reach import BeginCommand, CommandRefused, SendInput
from elasticflow.shared.state.job import Job, Phase
from testbed.real_pool import POOL, RunningPool, eventually, job, running_pool, slowed_down
from testbed.terminal_user import Ran
from tests.support.executor_process import ROOT
from tests.support.namespaces import skip_without_namespaces

WAIT_S = 240.0
NUM_LINES = 100_000  # 588,890 bytes: more than a message, and than what may be on the way


def environment(pool: RunningPool, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
    return kept | {"NATS_URL": pool.url, "EF_POOL": POOL, "EF_TENANT": "lab", "PYTHONPATH": str(ROOT)} | more


async def started(pool: RunningPool, *arguments: str, **more: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "elasticflow", *arguments)
    return await asyncio.create_subprocess_exec(
        *command, env=environment(pool, **more), stdin=pipe, stdout=pipe, stderr=pipe
    )


async def eflow(pool: RunningPool, *arguments: str, given: bytes = b"", **more: str) -> Ran:
    process = await started(pool, *arguments, **more)
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate(given)
    assert process.returncode is not None
    assert b"Traceback" not in err, err.decode()
    return Ran(status=process.returncode, out=out.decode(), err=err.decode())


@contextlib.asynccontextmanager
async def trained(pool: RunningPool, job_id: str, folder: Path, **changes: object) -> AsyncIterator[Job]:
    """A job that trains for as long as the block."""
    spec = slowed_down(job(JobClass.BEST_EFFORT, max_iterations=100_000, **changes), folder / "slow_down")
    await pool.acknowledged(spec, job_id)
    state = await pool.when(
        lambda state: job_id in state.live_jobs and state.live_jobs[job_id].training, f"{job_id} trains"
    )
    try:
        yield state.live_jobs[job_id]
    finally:
        await pool.client.cancel(job_id)
        await pool.ended([job_id])


async def entered(pool: RunningPool) -> list[events.WorkerEntered]:
    return [entry.message for entry in await pool.ledger() if isinstance(entry.message, events.WorkerEntered)]


@pytest.mark.asyncio(loop_scope="session")
async def test_the_stacks_of_a_running_job_name_the_line_of_its_code(session_pool: RunningPool, tmp_path: Path) -> None:
    pool = session_pool
    async with trained(pool, "shown", tmp_path):
        ran = await eflow(pool, "stack", "shown")
        as_json = await eflow(pool, "stack", "shown", "--rank", "0", "--json")
        other = await eflow(pool, "stack", "shown", "--rank", "7")
        foreign = await eflow(pool, "stack", "shown", EF_TENANT="other")
        log = await eflow(pool, "logs", "shown")
    assert ran.status == 0, ran.err
    assert "rank 0" in ran.out
    assert "tiny_jobs.py" in ran.out, ran.out
    assert '"channel"' in ran.out, ran.out
    (worker,) = json.loads(as_json.out)
    assert worker["rank"] == 0
    assert "in train" in worker["stacks"]
    assert not worker["problem"]
    assert "eflow stack has asked; the threads of this worker" in log.out
    assert other.status == 1
    assert "no worker of rank 7 of shown runs now" in other.err
    assert foreign.status == 1
    assert "add --tenant lab" in foreign.err
    ended = await eflow(pool, "stack", "shown")
    assert ended.status == 1
    assert "eflow logs shown" in ended.err


@pytest.mark.asyncio(loop_scope="session")
async def test_a_worker_whose_library_holds_the_lock_of_python_shows_its_stacks(
    session_pool: RunningPool, tmp_path: Path
) -> None:
    pool, function = session_pool, "testbed.user_code.tiny_jobs:HoldsTheLock"
    async with trained(pool, "locked", tmp_path, training_function=function):
        ran = await eflow(pool, "stack", "locked", "--json")
    worker, *_ = json.loads(ran.out)
    assert "in train" in worker["stacks"], worker


@pytest.mark.asyncio(loop_scope="session")
async def test_a_command_has_the_place_of_its_worker_and_tells_how_it_ends(
    session_pool: RunningPool, tmp_path: Path
) -> None:
    pool = session_pool
    hostile = "; touch /tmp/x $(id) 'quoted' \u202e\n*"
    async with trained(pool, "entered", tmp_path, environment={"OF_THE_JOB": "yes"}) as running:
        place = await eflow(pool, "exec", "entered", "--", "sh", "-c", "echo $OF_THE_JOB $EF_WORKER; pwd; exit 7")
        words = await eflow(pool, "exec", "entered", "--", "printf", "%s|", "a b", hostile)
        killed = await eflow(pool, "exec", "entered", "--", "sh", "-c", "echo before; kill -9 $$")
        missing = await eflow(pool, "exec", "entered", "--", "no-such-program")
        piped = await eflow(pool, "exec", "entered", "--", "cat", given=b"\x00! of the user\n")
        streams = await eflow(pool, "exec", "entered", "--", "sh", "-c", "echo out; echo err >&2")
        history = await eflow(pool, "explain", "entered")
    assert place.status == 7
    assert place.out.splitlines()[0] == "yes 1", place
    assert f"/{running.job_id}" in place.out.splitlines()[1], place
    assert words.out == f"a b|{hostile}|"
    assert words.status == 0
    assert killed.status == 128 + 9
    assert killed.out == "before\n"
    assert missing.status == 127
    assert "no-such-program: No such file" in missing.err
    assert piped.out == "\x00! of the user\n"
    assert piped.status == 0
    assert (streams.out, streams.err) == ("out\n", "err\n")
    recorded = [event for event in await entered(pool) if event.job_id == "entered"]
    assert [event.command for event in recorded][1] == shlex.join(["printf", "%s|", "a b", hostile])
    assert {(event.tenant, event.node_id, event.rank) for event in recorded} == {("lab", running.gpus[0].node_id, 0)}
    assert all("@" in event.user for event in recorded)
    assert len(recorded) == 6
    assert "runs beside rank 0" in history.out
    assert "no-such-program" in history.out


@pytest.mark.asyncio(loop_scope="session")
async def test_output_and_input_larger_than_a_message_pass_whole(session_pool: RunningPool, tmp_path: Path) -> None:
    pool = session_pool
    expected = "".join(f"{number}\n" for number in range(1, NUM_LINES + 1))
    async with trained(pool, "large", tmp_path):
        written = await eflow(pool, "exec", "large", "--", "seq", str(NUM_LINES))
        copied = await eflow(pool, "exec", "large", "--", "cat", given=expected.encode() * 3)
        unread = await eflow(pool, "exec", "large", "--", "true", given=expected.encode() * 3)
        left_open = await eflow(pool, "exec", "large", "--", "sh", "-c", "sleep 600 & echo done")
    assert written.out == expected
    assert written.status == 0
    assert copied.out == expected * 3
    assert copied.status == 0
    assert unread.status == 0
    assert left_open.out == "done\n", "what the command leaves is the worker's, and keeps no client"


@pytest.mark.asyncio(loop_scope="session")
async def test_a_terminal_is_one_for_the_command(session_pool: RunningPool, tmp_path: Path) -> None:
    pool = session_pool
    async with trained(pool, "seen", tmp_path):
        ours, theirs = pty.openpty()
        command = (sys.executable, "-m", "elasticflow", "exec", "seen", "--", "sh")
        process = await asyncio.create_subprocess_exec(
            *command, env=environment(pool, TERM="vt100"), stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        os.set_blocking(ours, False)
        shown = bytearray()

        async def shows(text: str) -> None:
            def read() -> bool:
                with contextlib.suppress(BlockingIOError, OSError):
                    shown.extend(os.read(ours, 65_536))
                return text.encode() in shown

            try:
                await eventually(read, f"the terminal shows {text}")
            except AssertionError as error:
                raise AssertionError(f"{error}: {bytes(shown)!r}") from None

        os.write(ours, b"test -t 0 && test -t 1 && echo is-$TERM-terminal\n")
        await shows("is-vt100-terminal")
        os.write(ours, b"stty size </dev/tty && echo has-its-own\n")
        await shows("has-its-own")
        os.write(ours, b"sleep 600\n")
        await shows("sleep 600")
        os.write(ours, b"\x03")  # Ctrl-C ends the sleep, and not the client
        os.write(ours, b"echo after-$((1+1))\n")
        await shows("after-2")
        os.write(ours, b"exit 5\n")
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() == 5
        os.close(ours)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_command_ends_with_its_worker_and_with_its_client(session_pool: RunningPool, tmp_path: Path) -> None:
    pool = session_pool
    async with trained(pool, "ends", tmp_path):
        left = await started(pool, "exec", "ends", "--", "sh", "-c", "echo $$; exec sleep 601")
        assert left.stdout is not None
        await left.stdout.readline()
        await eventually(lambda: sleeps(601), "the command runs")
        left.terminate()
        await left.wait()
        await eventually(lambda: not sleeps(601), "it has ended with its client")
        process = await started(pool, "exec", "ends", "--", "sh", "-c", "echo $$; setsid sleep 602; wait")
        assert process.stdout is not None
        await process.stdout.readline()
        await eventually(lambda: sleeps(602), "the command runs")
    async with asyncio.timeout(WAIT_S):
        _, err = await process.communicate()
    assert process.returncode == 1
    assert b"has ended" in err, err
    assert not sleeps(602), "also in a session of its own"


@pytest.mark.asyncio(loop_scope="session")
async def test_a_command_ends_with_the_generation_of_its_worker(session_pool: RunningPool, tmp_path: Path) -> None:
    pool = session_pool
    async with trained(pool, "resized", tmp_path) as running:
        process = await started(pool, "exec", "resized", "--", "sh", "-c", "echo $$; exec sleep 603")
        assert process.stdout is not None
        await process.stdout.readline()
        now = (await pool.client.state()).live_jobs["resized"]
        bounds = (2, None) if len(now.gpus) == 1 else (None, 1)
        set_limits = await pool.client.scale("resized", min_gpus=bounds[0], max_gpus=bounds[1])
        assert isinstance(set_limits, GpuLimitsSet), set_limits
        await pool.when(lambda state: state.live_jobs["resized"].generation > running.generation, "it is resized")
        async with asyncio.timeout(WAIT_S):
            _, err = await process.communicate()
        await eventually(lambda: not sleeps(603), "the command has ended")
    assert process.returncode != 0
    assert f"generation {running.generation}".encode() in err or b"its worker has ended" in err, err


def sleeps(seconds: int) -> bool:
    def words(process: psutil.Process) -> list[str]:
        with contextlib.suppress(psutil.Error):
            return process.cmdline()
        return []

    return any(words(process)[-2:] == ["sleep", str(seconds)] for process in psutil.process_iter())


@pytest.mark.asyncio(loop_scope="session")
async def test_what_another_tenant_or_a_stranger_sends_reaches_no_worker(
    session_pool: RunningPool, tmp_path: Path
) -> None:
    pool, session = session_pool, "0" * 32
    async with trained(pool, "mine", tmp_path) as running:
        node_id = running.gpus[0].node_id
        order = BeginCommand(
            session=session,
            job_id="mine",
            generation=running.generation,
            rank=0,
            command=("touch", str(tmp_path / "reached")),
        )
        for data in (b"", b"\xc1", b"?" * 600_000, reach.encode(SendInput(session=session, number=3))):
            await pool.bus.publish(subjects.reach("lab", POOL, node_id), data)
        others = RunningWorkers(pool.bus, POOL, "other", running)
        found = await others.find()
        assert found.workers == ()
        answers = await pool.bus.subscribe(subjects.reached("lab", POOL, node_id, session))
        for wrong in ({"job_id": "theirs"}, {"generation": 99}, {"rank": 9}, {"command": ("x" * 3_999, "y" * 10)}):
            fields: dict[str, Any] = {name: getattr(order, name) for name in order.__slots__} | wrong
            await pool.bus.publish(subjects.reach("lab", POOL, node_id), reach.encode(BeginCommand(**fields)))
            answer = reach.decode((await anext(answers)).data, CommandRefused)
            assert "now" in answer.problem or "longer than" in answer.problem
        await answers.close()
        assert not (tmp_path / "reached").exists()
    assert [event for event in await entered(pool) if event.job_id == "mine"] == []
    assert (await pool.client.state()).ended_jobs["mine"].phase is Phase.CANCELLED


async def test_a_command_in_namespaces_sees_what_its_worker_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_namespaces()
    monkeypatch.setenv("EF_ISOLATION", "required")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    async with running_pool(tmp_path, num_nodes=1, replicas={}) as pool:
        spec = job(JobClass.BEST_EFFORT, max_iterations=100_000, hyperparameters={"step_s": 0.2})
        await pool.acknowledged(spec, "inside")
        await pool.when(lambda state: "inside" in state.live_jobs and state.live_jobs["inside"].training, "it trains")
        processes = await eflow(pool, "exec", "inside", "--", "sh", "-c", "echo /proc/[0-9]*")
        secret = str(pool.data_dir / "workers.secret")
        reads = await eflow(pool, "exec", "inside", "--", "cat", secret)
        pattern = "CapEff|CapBnd|NoNewPrivs|Seccomp:"
        rights = await eflow(pool, "exec", "inside", "--", "grep", "-E", pattern, "/proc/self/status")
        stacks = await eflow(pool, "stack", "inside", "--json")
        await pool.client.cancel("inside")
        await pool.ended(["inside"])
    assert "/proc/1" in processes.out
    assert len(processes.out.split()) < 8, processes
    assert reads.status == 1
    assert "No such file" in reads.err, reads
    said = dict(line.split(":\t") for line in rights.out.splitlines())
    assert said == {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}, said
    worker, *_ = json.loads(stacks.out)
    assert "in train" in worker["stacks"]
