"""Messages between an executor and its runners."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages.worker_protocol.frames import (
    MAX_FRAME_BYTES,
    BrokenChannel,
    FrameReader,
    encode_frame,
)
from elasticflow.shared.messages.worker_protocol.task_running import (
    MAX_TASK_BYTES,
    RunBundle,
    TaskDone,
    bundle_frames,
    too_large,
)

SIZES = st.integers(min_value=0, max_value=40) | st.sampled_from([MAX_TASK_BYTES, MAX_TASK_BYTES // 2])


@given(sizes=st.lists(SIZES, max_size=12), first=st.integers(min_value=0, max_value=1 << 53 - 12))
def test_a_bundle_is_sent_whole_and_in_order_in_frames_that_fit(sizes: list[int], first: int) -> None:
    tasks = [(first + number, bytes(size)) for number, size in enumerate(sizes)]
    frames = list(bundle_frames(5, tasks))
    assert [task for frame in frames for task in frame.tasks] == tasks
    assert {frame.bundle_id for frame in frames} <= {5}
    for frame in frames:
        assert list(FrameReader(RunBundle).feed(encode_frame(frame))) == [frame]


def test_many_tiny_tasks_fit_into_their_frames() -> None:
    frames = [encode_frame(frame) for frame in bundle_frames(1, [((1 << 53) - 1, b"")] * 100_000)]
    assert len(frames) > 1
    assert max(map(len, frames)) <= MAX_FRAME_BYTES


@pytest.mark.parametrize("index", [-1, 1 << 54, "1", 1.0])
def test_an_impossible_index_is_refused(index: int) -> None:
    frame = encode_frame(TaskDone(bundle_id=1, index=index, result=b"", task_s=0.0))
    with pytest.raises(BrokenChannel, match="index"):
        list(FrameReader(TaskDone).feed(frame))


@pytest.mark.parametrize("result", [bytes(MAX_TASK_BYTES + 1), "text"])
def test_a_result_that_is_too_large_or_no_bytes_is_refused(result: bytes) -> None:
    frame = encode_frame(TaskDone(bundle_id=1, index=1, result=result, task_s=0.0))
    with pytest.raises(BrokenChannel, match="result"):
        list(FrameReader(TaskDone).feed(frame))


def test_the_error_names_the_size_the_limit_and_what_to_do() -> None:
    assert too_large("result", 600_000) == (
        "its result has 600,000 bytes, above the limit of 524,288: "
        "write it to a file that all nodes see, and use the file's path as the result"
    )
