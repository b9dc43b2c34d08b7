"""Whatever a worker sends on its channel, its executor goes on, and reports only on the worker's own job."""

import asyncio
import socket
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.services.executor.decisions.local_events_and_actions import WorkerEnded, WorkerId, WorkerReported
from elasticflow.services.executor.decisions.state import node_report
from elasticflow.services.executor.processes.fork_server_client import Exited, ForkedProcess, ProcessChannel
from elasticflow.shared.messages import codec, events
from elasticflow.shared.messages.limits import MAX_TEXT_LENGTH
from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, FrameReader, encode_frame
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointWritten,
    Ending,
    Failed,
    Finished,
    FromWorker,
    Profiled,
    Progressed,
    Switched,
)
from elasticflow.shared.messages.worker_protocol.to_worker import StopAtBoundary
from elasticflow.shared.runtime.service.ledger_encoding import ledger_message, subject_of
from tests.support.executor_node import ExecutorNode
from tests.support.message_strategies import messages_of

# the manager ends a worker that reports a switch which it was not sent
REPORTS = st.one_of([messages_of(kind) for kind in get_args(FromWorker) if kind is not Switched])


ENDS = st.builds(
    WorkerEnded,
    worker=st.just(WorkerId("a", 1, 0)),
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    last_lines=st.text(max_size=9),
)


@given(steps=st.lists(st.tuples(st.sampled_from((0, 1)), REPORTS | ENDS), max_size=12), profiles=st.booleans())
def test_reports_and_ends_concern_the_workers_own_job_and_can_be_read(
    steps: list[tuple[int, FromWorker | WorkerEnded]], profiles: bool
) -> None:
    node = ExecutorNode()
    (node.profile if profiles else node.admit)("a")
    node.place("node-0:0", "node-0:1", job_id="a")
    node.admit("b").place("node-0:2", job_id="b")
    before = node.state.pool.live_jobs["b"]
    node.emitted.clear()
    for rank, step in steps:
        worker = WorkerId("a", 1, rank)
        is_end = isinstance(step, WorkerEnded)
        if worker in node.state.workers and (worker in node.processes or not is_end):  # a process ends once
            node.note(replace(step, worker=worker) if is_end else WorkerReported(worker=worker, message=step))
        heartbeat = node_report(node.state, node.now_s)
        assert codec.decode(codec.encode(heartbeat, id="", recorded_at_s=0.0)).message == heartbeat
    for event in node.emitted:
        assert (event.job_id, event.node_id) == ("a", "node-0")
        data = codec.encode(event, id="id", recorded_at_s=0.0)
        assert ledger_message(subject_of("p", event), data) == event
    assert node.state.pool.live_jobs["b"] == before


@pytest.mark.parametrize("max_restarts", [0, 5])
@pytest.mark.parametrize(
    "report",
    [Ending(reason="x" * MAX_TEXT_LENGTH), Failed(error="x" * MAX_TEXT_LENGTH, traceback="x" * MAX_TEXT_LENGTH)],
    ids=["ending", "failed"],
)
def test_the_longest_texts_of_a_worker_make_events_that_can_be_read(report: FromWorker, max_restarts: int) -> None:
    """The executor puts them into a sentence. What no reader takes would be reported again and again."""
    node = ExecutorNode()
    config = replace(node.state.pool.config, max_restarts=max_restarts)
    node.ledger(events.PoolConfigured(config=config, at_s=0.0)).training(2)
    node.reports(report, rank=1).ends(rank=1, code=1)
    told = node.emitted_of(events.WorkerCrashed, events.JobFailed)
    assert told
    for event in told:
        data = codec.encode(event, id="id", recorded_at_s=0.0)
        assert ledger_message(subject_of("p", event), data) == event


@given(data=st.binary(max_size=300), frames=st.lists(REPORTS, max_size=3))
@pytest.mark.asyncio
async def test_malformed_frames_end_the_worker_only(data: bytes, frames: list[FromWorker]) -> None:
    """It is killed at the first frame that is not one of a worker, and what came before counts."""
    ours, theirs = socket.socketpair()
    killed, received = list[str](), list[Any]()
    exited: asyncio.Future[Exited] = asyncio.get_running_loop().create_future()

    class Process(ForkedProcess):
        def kill(self) -> None:
            exited.set_result(Exited(code=None, signal=9))

    process = Process(pid=1, exited=exited, channel=ProcessChannel(ours))
    with theirs:
        theirs.sendall(b"".join(map(encode_frame, frames)) + encode_frame(StopAtBoundary()) + data)
        end = await process.follow(FrameReader[FromWorker](*get_args(FromWorker)), received.append, killed.append)
    assert (received, end.signal) == (frames, 9)
    assert killed == ["StopAtBoundary does not come from the other end"]


@pytest.mark.parametrize(
    "report",
    [
        Profiled(iterations_per_s=0.0, dataset_size=None),
        CheckpointWritten(iteration=5, file="x" * 30_000),
        Progressed(iteration=5, iterations_per_s=1.0, metrics={f"{n:0200d}": 0.0 for n in range(256)}),
        Finished(iteration=5, condition="metric", metrics={f"{n:0200d}": 0.0 for n in range(256)}),
    ],
)
def test_reports_that_would_stop_a_planner_or_a_reader_are_refused(report: FromWorker) -> None:
    with pytest.raises(BrokenChannel):
        list(FrameReader[FromWorker](*get_args(FromWorker)).feed(encode_frame(report)))
