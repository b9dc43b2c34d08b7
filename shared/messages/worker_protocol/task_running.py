"""Messages between an executor and a runner, which executes tasks of one padding load on one GPU or CPU slot. Pure.

Inputs and results are pickles, made and read only by the client and the runner; the executor passes them on unread.
Tasks are executed one after another in the order in which they are sent, and each gets one reply. So the task under way
is the first one without a reply. The end of file on the channel means that the executor is gone: the runner ends.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Len
from pydantic import Strict, StringConstraints

from elasticflow.shared.messages.limits import Digest, DurationS, Index, NumBytes, Text, Token
from elasticflow.shared.messages.limits import Sequence as BundleId

MAX_TASK_BYTES = 512 * 1024  # of an input, of a result, and of the inputs in one frame
_BYTES_BESIDE_INPUT = 16  # the most that a task adds to a frame: its index and two lengths

TaskIndex = Annotated[int, Strict(), Ge(0), Le(1 << 53)]
Payload = Annotated[bytes, Strict(), Len(max_length=MAX_TASK_BYTES)]
Task = tuple[TaskIndex, Payload]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTasks:
    """Become a runner: the first message of a forked process.

    function: "package.module:function"; it takes one input and returns one result.
    code_path: folder with the function's module; "" if it is importable without.
    gpu_index: number of the GPU or CPU slot on this node.
    cpu_share: cores that a CPU slot may use. cpu_niceness: of its process, 19 for the lowest CPU priority.
    memory_limit_bytes: what a CPU slot's process may allocate beyond the preloaded libraries; 0: no limit.
    results_folder: where results above MAX_TASK_BYTES are stored as files; "": they fail their tasks.
    """

    load_id: Token
    function: Annotated[str, StringConstraints(max_length=300)]  # the runner refuses a bad one with a reason
    log_file: str
    code_path: str = ""
    device: Literal["cpu", "cuda"] = "cpu"
    gpu_index: Index = 0
    cpu_share: Annotated[float, Strict(), Gt(0)] = 1.0
    cpu_niceness: Annotated[int, Strict(), Ge(0), Le(19)] = 0
    memory_limit_bytes: NumBytes = 0
    results_folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBundle:
    """Execute these tasks after all earlier ones. A bundle may arrive in several of these messages."""

    bundle_id: BundleId
    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerReady:
    """The function is loaded. Tasks may be sent before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerFailed:
    """The function cannot be loaded, on any node: the runner executes no task and ends."""

    error: Text
    traceback: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDone:
    """task_s: seconds for reading the input, calling the function and writing the result.

    file_digest: SHA-256 of the file that has the result, instead of `result`.
    """

    bundle_id: BundleId
    index: TaskIndex
    result: Payload
    file_digest: Digest = ""
    task_s: DurationS


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed:
    """The task raised an exception, or its input or result is unusable. traceback: the end of it.

    ends_runner: the task has left the GPU in an error state, in which every later task would fail; the runner ends.
    """

    bundle_id: BundleId
    index: TaskIndex
    error: Text
    traceback: Text = ""
    task_s: DurationS = 0.0
    ends_runner: Annotated[bool, Strict()] = False


ToRunner = RunTasks | RunBundle
FromRunner = RunnerReady | RunnerFailed | TaskDone | TaskFailed


def bundle_frames(bundle_id: int, tasks: Sequence[Task]) -> Iterator[RunBundle]:
    """The bundle as messages that each fit into a frame. No input is above MAX_TASK_BYTES."""
    batch: list[Task] = []
    num_bytes = 0
    for index, task_input in tasks:
        size = len(task_input) + _BYTES_BESIDE_INPUT
        if batch and num_bytes + size > MAX_TASK_BYTES:
            yield RunBundle(bundle_id=bundle_id, tasks=tuple(batch))
            batch, num_bytes = [], 0
        batch.append((index, task_input))
        num_bytes += size
    if batch:
        yield RunBundle(bundle_id=bundle_id, tasks=tuple(batch))


def too_large(what: str, num_bytes: int) -> str:
    """The error of a task whose input or result is above MAX_TASK_BYTES. what: "input" or "result"."""
    return (
        f"its {what} has {num_bytes:,} bytes, above the limit of {MAX_TASK_BYTES:,}: "
        f"write it to a file that all nodes see, and use the file's path as the {what}"
    )
