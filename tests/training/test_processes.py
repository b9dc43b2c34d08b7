"""Workers end alone, with their peers, or with their executor, and leave no process behind."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest

from elasticflow.services.executor.processes.fork_server_client import LaunchFailed, marked_processes, wait_until_gone
from elasticflow.services.executor.processes.launcher import Launcher
from elasticflow.shared.messages.timeouts import FailureTimeouts
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointWritten,
    ExitCode,
    Finished,
    Interrupted,
    Started,
)
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan, LeaseExtended
from elasticflow.shared.runtime.process.clock import boot_s
from testbed.worker_nodes import Lineup

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOT = Path(__file__).parents[2]
LONG = {"max_iterations": 1_000_000, "hyperparameters": {"step_s": 0.005}}


def children_in(log: str) -> list[int]:
    pids = [int(pid) for pid in re.findall(r"child=(\d+)", log)]
    assert len(pids) == 3, "as `StartsProcesses` says"
    return pids


async def until_gone(*pids: int) -> None:
    await asyncio.to_thread(wait_until_gone, pids, timeout_s=30)


async def test_peers_of_a_killed_worker_wait_and_the_checkpoint_is_complete(node, spec_of):
    job_id = node.new_job_id()
    spec = spec_of("Points", **LONG)
    workers = await node.launch(spec, job_id=job_id, num_workers=3, checkpoint_every_s=0.05)
    await workers.first(CheckpointWritten)
    workers.workers[2].kill()
    done = max([(await workers.first(Interrupted, rank)).iteration for rank in (0, 1)])
    for rank in (0, 1):
        workers.workers[rank].kill()
    exits = await workers.ended()
    assert {exit_.signal for exit_ in exits.values()} == {signal.SIGKILL}

    newest = workers.all_of(CheckpointWritten)[-1].iteration
    again = await node.launch(spec, job_id=job_id, generation=2)
    assert done >= (await again.first(Started)).iteration >= newest > 0
    again.stop()
    await again.ended()


async def test_peers_survive_a_worker_that_kills_itself_in_a_step(node, spec_of):
    workers = await node.launch(spec_of("KillsItself"), job_id=node.new_job_id(), num_workers=2)
    exits = await workers.ended()
    assert signal.SIGKILL in {exit_.signal for exit_ in exits.values()}


async def test_worker_without_peers_times_out_in_its_rendezvous(node, spec_of):
    workers = await node.launch(
        spec_of("Points"),
        job_id=node.new_job_id(),
        num_workers=2,
        lineup=Lineup(ranks=[0]),
        timeouts=FailureTimeouts(stall_timeout_s=0.6),
    )
    assert (await workers.ended())[0].code == ExitCode.PEER_LOST


async def test_a_ready_worker_waits_for_a_start_that_is_declared_to_be_long(node, spec_of, tmp_path):
    """A worker waits 4 s for the others in a pool that gives a job 8 s."""

    async def codes_of(name: str, start_timeout_s: float) -> list[int | None]:
        late = {"first": str(tmp_path / name), "late_s": 6.0}
        workers = await node.launch(
            spec_of("OneStartsLate", hyperparameters=late),
            job_id=node.new_job_id(),
            num_workers=2,
            timeouts=FailureTimeouts(stall_timeout_s=8.0, start_timeout_s=start_timeout_s),
        )
        return sorted(exit_.code for exit_ in (await workers.ended()).values())

    usual, declared = await asyncio.gather(codes_of("usual", 0.0), codes_of("declared", 120.0))
    assert usual == [ExitCode.PEER_LOST] * 2
    assert declared == [ExitCode.DONE] * 2


async def test_older_generation_yields_to_a_newer_checkpoint(node, spec_of):
    job_id = node.new_job_id()
    spec = spec_of("Points", **LONG)
    old = await node.launch(spec, job_id=job_id, checkpoint_every_s=0.05)
    await old.first(CheckpointWritten)
    new = await node.launch(spec_of("Points", max_iterations=200), job_id=job_id, generation=2)
    await new.first(Finished)
    assert (await old.ended())[0].code == ExitCode.SUPERSEDED
    await new.ended()


async def test_processes_that_a_worker_started_end_with_it(node, spec_of):
    job_id = node.new_job_id()
    another = await node.launch(spec_of("StartsProcesses", **LONG), job_id=(other_id := node.new_job_id()))
    await another.first(Started)
    workers = await node.launch(spec_of("StartsProcesses"), job_id=job_id)
    await workers.ended()
    wait_until_gone(children_in(node.log_of(job_id)), timeout_s=0.0)  # soon after its end: they may hold GPU memory
    others = children_in(node.log_of(other_id))
    assert all(map(psutil.pid_exists, others)), "those of another worker go on"
    assert f"eflow worker of {other_id}, rank 0" in psutil.Process(another.workers[0].pid).cmdline()[0]
    another.workers[0].kill()
    await another.ended()
    wait_until_gone(others, timeout_s=0.0)


async def test_a_worker_ends_itself_and_its_processes_when_its_lease_expires(node, spec_of):
    job_id = node.new_job_id()
    workers = await node.launch(spec_of("StartsProcesses", **LONG), job_id=job_id, lease_until_s=boot_s() + 600.0)
    await workers.first(Started)
    workers.workers[0].send(LeaseExtended(until_s=boot_s()))
    assert (await workers.ended())[0].signal == signal.SIGKILL
    log = node.log_of(job_id)
    assert "the lease has expired without an extension" in log
    await until_gone(*children_in(log))


async def test_a_worker_whose_first_lease_is_never_extended_ends(node, spec_of):
    until_s = boot_s() + 0.5
    workers = await node.launch(spec_of("Points", **LONG), job_id=node.new_job_id(), lease_until_s=until_s)
    assert (await workers.ended())[0].signal == signal.SIGKILL


async def test_a_worker_that_starts_late_has_no_longer_lease_than_its_node(node, spec_of):
    """Its executor may have stopped in the meantime: then the node is lost."""
    workers = await node.launch(spec_of("Points", **LONG), job_id=node.new_job_id(), lease_until_s=boot_s() - 1.0)
    assert (await workers.ended())[0].signal == signal.SIGKILL
    assert not workers.all_of(Started)


async def test_an_extended_lease_lets_the_training_finish(node, spec_of):
    spec = spec_of("Points", max_iterations=40, hyperparameters={"step_s": 0.02})  # 6 s
    workers = await node.launch(spec, job_id=node.new_job_id(), lease_until_s=boot_s() + 600.0)
    await workers.first(Started)
    for duration_s in (3.0, 600.0):
        workers.workers[0].send(LeaseExtended(until_s=boot_s() + duration_s))
    assert (await workers.first(Finished)).iteration == 40
    await workers.ended()


async def test_a_worker_that_cannot_decode_a_message_logs_it_and_ends(node, spec_of):
    """Admission accepts no such name, so only a bug can cause this."""
    workers = await node.launch(spec_of("Points"), job_id="no token")
    assert (await workers.ended())[0].code == ExitCode.UNREADABLE
    assert "cannot decode a message of its executor" in (log := node.log_of("no token"))
    assert "job_id" in log


async def test_dead_fork_server_is_replaced_and_its_workers_are_reported(node, spec_of):
    spec, job_id = spec_of("StartsProcesses", **LONG), node.new_job_id()
    workers = await node.launch(spec, job_id=job_id, num_workers=2)
    await workers.first(Started)
    server = psutil.Process(workers.workers[0].pid).ppid()
    own, in_own_session, daemon = children_in(node.log_of(job_id))
    os.kill(server, signal.SIGKILL)
    assert {exit_.signal for exit_ in (await workers.ended()).values()} == {signal.SIGKILL}
    await until_gone(*(worker.pid for worker in workers.workers.values()), own, in_own_session, daemon)
    again = None
    while again is None:
        with contextlib.suppress(LaunchFailed):  # while it loads its libraries, which takes long on a busy machine
            again = await node.launch(spec_of("Points"), job_id=node.new_job_id())
    await again.first(Finished)
    await again.ended()


EXECUTOR = """
import asyncio, sys
from pathlib import Path
from elasticflow.services.executor.processes.launcher import Launcher
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.worker_protocol.from_worker import Started
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan

async def main():
    def on_event(worker, event):
        if isinstance(event, Started):
            print(worker.pid, flush=True)
    launcher = Launcher(
        data_dir=Path(sys.argv[1]), node_id="doomed", on_event=on_event, warm_workers=2
    )
    await launcher.start()
    while len(launcher.warm_pool.ready) < 2:
        await asyncio.sleep(0.01)
    print(launcher.warm_pool.ready[1], flush=True)
    spec = JobSpec(
        training_function="training_functions:StartsProcesses",
        global_batch_size=16,
        max_iterations=1_000_000,
        hyperparameters={"step_s": 0.005},
    )
    for job_id in ("a", "b"):
        await launcher.launch(
            Assignment(
                job_id=job_id, plan=GenerationPlan(generation=1, world_size=1), rank=0, spec=spec,
                checkpoint_dir=sys.argv[1], code_path=sys.argv[2],
            )
        )
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_no_worker_and_no_process_of_one_outlives_a_killed_executor(tmp_path):
    executor = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-c",
            EXECUTOR,
            str(tmp_path),
            str(Path(__file__).parents[2] / "testbed" / "user_code"),
        ),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"NATS_URL": "nats://token@host:4222"},
    )
    assert executor.stdout is not None
    async with asyncio.timeout(240):  # it loads its libraries, which takes long on a busy machine
        warm, *pids = [int(await executor.stdout.readline()) for _ in range(3)]
    marks = {"EF_WORKER": "1", "EF_NODE_ID": "doomed", "EF_DATA_DIR": str(tmp_path)}
    workers = {process.pid: process for process in marked_processes(marks)}
    assert {warm, *pids} < set(workers)
    assert sum(process.name() == "sleep" for process in workers.values()) == 4
    server = psutil.Process(pids[0]).parent()
    assert server is not None
    descendants = [process.pid for process in server.children(recursive=True)]
    assert len(set(descendants) - set(workers)) == 2, "the daemons without a mark"
    assert "NATS_URL" not in workers[pids[0]].environ()  # it may hold a token
    for pid in pids:  # a stopped process does not notice the end of its channel, so others kill it and its children
        os.kill(pid, signal.SIGSTOP)
    executor.kill()
    await executor.wait()
    await until_gone(*workers, *descendants)


async def test_start_ends_leftover_processes_and_close_leaves_none(tmp_path, spec_of):
    """Leftover on a system without a parent death signal: a marked process that no executor knows."""
    marks = {"EF_WORKER": "1", "EF_NODE_ID": "reborn", "EF_DATA_DIR": str(tmp_path.resolve())}
    started = asyncio.Event()
    events: list[object] = []

    def on_event(_, event):
        events.append(event)
        if isinstance(event, Started):
            started.set()

    launcher = Launcher(data_dir=tmp_path, node_id="reborn", on_event=on_event)
    ours, others = [
        await asyncio.create_subprocess_exec("sleep", "600", env=os.environ | marks | {"EF_NODE_ID": node_id})
        for node_id in ("reborn", "other")
    ]
    await launcher.start()
    assert await ours.wait() == -signal.SIGKILL
    assert others.returncode is None
    others.kill()
    await others.wait()
    worker = await launcher.launch(
        Assignment(
            job_id="a",
            plan=GenerationPlan(generation=1, world_size=1),
            rank=0,
            spec=spec_of("Points", **LONG),
            checkpoint_dir=str(tmp_path),
            code_path=str(Path(__file__).parents[2] / "testbed" / "user_code"),
        )
    )
    async with asyncio.timeout(60):
        await started.wait()
    assert worker.pid in {process.pid for process in marked_processes(marks)}
    await launcher.close()
    assert events[-1] == worker.exited
    assert marked_processes(marks) == []


async def test_a_reader_process_collects_no_garbage_of_its_worker(node, spec_of):
    """The garbage may include connections, whose threads the process does not have: collecting them would crash it."""
    job_id = node.new_job_id()
    workers = await node.launch(spec_of("LeavesGarbage"), job_id=job_id)
    await workers.ended()
    said = node.log_of(job_id)
    made_by = said.partition("made by ")[2].partition("\n")[0]
    assert made_by.isdigit()
    assert set(re.findall(r"collected by (\d+)", said)) <= {made_by}
