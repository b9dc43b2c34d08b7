"""The bytes between an executor and its workers."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages import codec
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.job_environment import OwnEnvironment
from elasticflow.shared.messages.job_spec import JobSpec, MetricCondition
from elasticflow.shared.messages.measurements import ResizeTimeline, SingleGpuStepTimes
from elasticflow.shared.messages.worker_protocol.forking import (
    EnterEnvironment,
    FetchData,
    ForkFailed,
    ForkServerReady,
    ForkWorker,
    InstallPackages,
    MakeEnvironment,
    NotPrepared,
    Prepared,
    WorkerForked,
    WorkerReaped,
)
from elasticflow.shared.messages.worker_protocol.frames import (
    MAX_FRAME_BYTES,
    BrokenChannel,
    ChannelMessage,
    FrameReader,
    encode_frame,
)
from elasticflow.shared.messages.worker_protocol.from_worker import (
    Alive,
    CheckpointWritten,
    Failed,
    Finished,
    FromWorker,
    Profiled,
    Progressed,
    RendezvousListening,
    Started,
    Switched,
)
from elasticflow.shared.messages.worker_protocol.task_running import (
    RunBundle,
    RunnerFailed,
    RunnerReady,
    RunTasks,
    TaskDone,
    TaskFailed,
)
from elasticflow.shared.messages.worker_protocol.to_worker import (
    Assignment,
    GenerationPlan,
    JoinRendezvous,
    LeaseExtended,
    PrepareSwitch,
    StopAtBoundary,
    WriteLog,
)

SPEC = JobSpec(
    training_function="package.module:Job",
    global_batch_size=64,
    hyperparameters={"learning_rate": 0.1, "layers": 2, "name": "small", "tied": True},
    max_iterations=100,
    metric_conditions=(MetricCondition(metric="accuracy", comparison=">=", value=0.9),),
    deadline_in_s=60.0,
)
STEP_TIMES = SingleGpuStepTimes(num_virtual_nodes=2, step_s_by_virtual_nodes={1: 0.05, 2: 0.08}, reproducible="bitwise")
TIMELINE = ResizeTimeline(prepare_s=0.7, stop_s=0.01, first_step_s=0.1, bytes_moved=4096)
MESSAGES = (
    WriteLog(file="/somewhere/g3-r1.log"),
    Assignment(
        job_id="a",
        plan=GenerationPlan(generation=3, world_size=2),
        rank=1,
        spec=SPEC,
        checkpoint_dir="/somewhere",
    ),
    PrepareSwitch(
        plan=GenerationPlan(generation=2, world_size=2, rendezvous_size=4),
        rendezvous_rank=3,
    ),
    JoinRendezvous(generation=1, address="10.0.0.1:4000"),
    StopAtBoundary(),
    LeaseExtended(until_s=1234.5),
    RendezvousListening(generation=1, port=4000),
    Started(iteration=7),
    Switched(generation=2, rank=1, iteration=9, resize=TIMELINE),
    Progressed(iteration=9, iterations_per_s=None, metrics={"loss": 0.5}),
    Alive(iteration=9, seconds_since_progress=3.5),
    CheckpointWritten(iteration=9),
    Profiled(iterations_per_s=12.5, dataset_size=1500, single_gpu=STEP_TIMES),
    Profiled(iterations_per_s=20.0, dataset_size=1500, one_virtual_node_s=0.25),
    Finished(iteration=100, condition="metric", metrics={"accuracy": 0.91}),
    Failed(error="ValueError: no", traceback="line 1\nline 2"),
    ForkServerReady(),
    ForkWorker(request=0),
    WorkerForked(request=0, pid=4711),
    ForkFailed(request=0, reason="no memory"),
    WorkerReaped(pid=4711, exit_code=None, signal=9),
    InstallPackages(folder="/somewhere", requirements=("tqdm",)),
    MakeEnvironment(folder="/somewhere", place="/elsewhere", environment=OwnEnvironment(python="3.12")),
    EnterEnvironment(folder="/elsewhere", readable=("/code",), writable=("/logs", "/checkpoints")),
    FetchData(folder="/somewhere", uri="s3://bucket/set", environment={"TOKEN": "t"}),
    Prepared(),
    NotPrepared(error="no such package"),
    RunTasks(load_id="a", function="package.module:function", log_file="/somewhere/a.log", memory_limit_bytes=1 << 30),
    RunBundle(bundle_id=7, tasks=((0, b"\x00\xff"), (3, b""))),
    RunnerReady(),
    RunnerFailed(error="cannot import package.module"),
    TaskDone(bundle_id=7, index=0, result=b"\xff\x00", task_s=0.25),
    TaskFailed(bundle_id=7, index=3, error="ValueError: no", traceback="line 1", task_s=0.5),
)


def reader_of_all() -> FrameReader[ChannelMessage]:
    return FrameReader(*get_args(ChannelMessage))


@given(cuts=st.lists(st.integers(min_value=1, max_value=400), max_size=40))
def test_every_message_survives_a_stream_cut_anywhere(cuts):
    stream = b"".join(encode_frame(message) for message in MESSAGES)
    frames = reader_of_all()
    received = []
    for length in [*cuts, len(stream)]:
        received += frames.feed(stream[:length])
        stream = stream[length:]
    assert tuple(received) == MESSAGES


@given(st.binary(min_size=1, max_size=200))
def test_foreign_bytes_are_refused_or_awaited_never_more(data):
    frames = reader_of_all()
    try:
        assert list(frames.feed(len(data).to_bytes(4, "big") + data)) == []
    except BrokenChannel:
        return
    raise AssertionError("these bytes were taken for a message")


def test_a_frame_that_announces_too_much_is_refused_before_it_is_read():
    with pytest.raises(BrokenChannel, match="is above"):
        list(reader_of_all().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big")))


def test_messages_before_a_broken_frame_are_read():
    unreadable = replace(MESSAGES[1], job_id="no token")
    received = reader_of_all().feed(encode_frame(WriteLog(file="a.log")) + encode_frame(unreadable))
    assert next(received) == WriteLog(file="a.log")
    with pytest.raises(BrokenChannel, match="job_id"):
        next(received)


def test_a_worker_may_not_send_what_only_its_executor_sends():
    received = FrameReader[FromWorker](*get_args(FromWorker)).feed(encode_frame(StopAtBoundary()))
    with pytest.raises(BrokenChannel, match="StopAtBoundary"):
        next(received)


@given(job_id=st.text(max_size=66) | st.text("aZ09_-. \n", max_size=66))
def test_a_job_id_travels_or_is_refused_at_the_door(job_id):
    problems = codec.validate(SubmitJob(job_id=job_id, tenant="lab", spec=SPEC))
    received = reader_of_all().feed(encode_frame(replace(MESSAGES[1], job_id=job_id)))
    if problems:
        assert problems[0].startswith("job_id: must be 1 to 64 letters, digits, _ and -, not ")
        with pytest.raises(BrokenChannel, match="job_id"):
            next(received)
    else:
        assert next(received).job_id == job_id


def test_a_message_that_is_too_large_is_not_sent():
    with pytest.raises(ValueError, match="is above"):
        encode_frame(Failed(error="x" * (MAX_FRAME_BYTES + 1)))


def test_a_text_that_utf_8_cannot_hold_is_sent_with_question_marks() -> None:
    failed = Failed(error="ValueError: no label for donn\udce9es.csv", traceback="\ud800\0\U0001f600")
    (received,) = FrameReader[FromWorker](*get_args(FromWorker)).feed(encode_frame(failed))
    assert received == Failed(error="ValueError: no label for donn?es.csv", traceback="?\0\U0001f600")
