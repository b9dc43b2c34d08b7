"""The messages of a padding load's tasks as bytes: bundles to executors, results back.

    {version, tasks: [[index, input], ...], num_failures}
    {version, index, value, error, traceback, attempts, task_s, node_id}

They have no envelope: thousands arrive each second, and no ledger keeps them. The rules of `envelope.codec` apply: a
type grows by fields with defaults, and any other change needs a new VERSION. Inputs and values are bytes that only the
load's function reads.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, TypeVar, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]
from annotated_types import Ge, Gt, Le, Len
from pydantic import Strict, TypeAdapter

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages.envelope.codec import Undecodable, checked_version, unpack, validated
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES, MAX_TEXT_LENGTH, DurationS, TaskIndex, Text, Token

MAX_TASKS = 10_000  # in one bundle
_MAX_HEAD_BYTES = 64  # of an encoded bundle, beside its tasks
_MAX_TASK_HEAD_BYTES = 15  # of an encoded task, beside its input: 1 for the pair, 9 for the index, 5 for the length

Binary = Annotated[bytes, Strict()]
Task = tuple[TaskIndex, Binary]  # its index within the load, and the input of the function
T = TypeVar("T", "TaskBundle", "TaskResult")

_pack = cast(Callable[..., bytes], msgpack.packb)  # pyright: ignore[reportUnknownMemberType]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBundle:
    """Tasks of one load that an executor gets at once. num_failures: attempts of each that have failed before."""

    VERSION: ClassVar[int] = 1
    tasks: Annotated[tuple[Task, ...], Len(1, MAX_TASKS)]
    num_failures: Annotated[int, Strict(), Ge(0), Le(1_000_000)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task returned, or how it failed. value: None if it failed; error: "" if it returned.

    attempts: executions until this result. task_s: seconds of the last one. node_id: where that was.
    """

    VERSION: ClassVar[int] = 1
    index: TaskIndex
    value: Binary | None = None
    error: Text = ""
    traceback: Text = ""
    attempts: Annotated[int, Strict(), Gt(0), Le(1_000_000)]
    task_s: DurationS
    node_id: Token

    def __post_init__(self) -> None:
        if (self.value is None) != bool(self.error):
            raise ValueError("must have either a value or an error")


_BUNDLE = TypeAdapter(TaskBundle)
_RESULT = TypeAdapter(TaskResult)


def encode_bundle(bundle: TaskBundle) -> bytes:
    """As msgpack. Raises TooLarge above MAX_MESSAGE_BYTES."""
    fields = {"version": TaskBundle.VERSION, "tasks": bundle.tasks, "num_failures": bundle.num_failures}
    return _bounded("TaskBundle", _pack(fields))


def decode_bundle(data: bytes) -> TaskBundle:
    """Every field checked. Raises Undecodable, naming each bad field."""
    return _decode(data, TaskBundle, _BUNDLE)


def encode_result(result: TaskResult) -> bytes:
    """As msgpack. Raises TooLarge above MAX_MESSAGE_BYTES.

    An error of a task must reach its user: text is cut to MAX_TEXT_LENGTH, and replaced where UTF-8 cannot encode it.
    """
    fields = {"version": TaskResult.VERSION} | asdict(result)
    fields["error"] = result.error[:MAX_TEXT_LENGTH]
    fields["traceback"] = result.traceback[-MAX_TEXT_LENGTH:]
    return _bounded("TaskResult", _pack(fields, unicode_errors="replace"))


def decode_result(data: bytes) -> TaskResult:
    """Every field checked. Raises Undecodable, naming each bad field."""
    return _decode(data, TaskResult, _RESULT)


def split_into_bundles(tasks: Iterable[Task], *, max_bytes: int, max_tasks: int) -> Iterator[TaskBundle]:
    """The tasks in their order, in bundles of at most max_tasks, each at most max_bytes when encoded.

    Reads no more tasks than the next bundle needs. Raises TooLarge for a task that fits in no bundle.
    """
    bundle: list[Task] = []
    num_bytes = _MAX_HEAD_BYTES
    for index, data in tasks:
        task_bytes = _MAX_TASK_HEAD_BYTES + len(data)
        if _MAX_HEAD_BYTES + task_bytes > max_bytes:
            raise TooLarge(f"task {index}", _MAX_HEAD_BYTES + task_bytes, max_bytes)
        if bundle and num_bytes + task_bytes > max_bytes:
            yield TaskBundle(tasks=tuple(bundle))
            bundle, num_bytes = [], _MAX_HEAD_BYTES
        bundle.append((index, data))
        num_bytes += task_bytes
        if len(bundle) == max_tasks:  # before the next task is read: that may take a while
            yield TaskBundle(tasks=tuple(bundle))
            bundle, num_bytes = [], _MAX_HEAD_BYTES
    if bundle:
        yield TaskBundle(tasks=tuple(bundle))


def _bounded(name: str, data: bytes) -> bytes:
    if len(data) > MAX_MESSAGE_BYTES:
        raise TooLarge(name, len(data), MAX_MESSAGE_BYTES)
    return data


def _decode(data: bytes, message_type: type[T], adapter: TypeAdapter[T]) -> T:
    if len(data) > MAX_MESSAGE_BYTES:
        raise Undecodable(f"message of {len(data):,} bytes is above {MAX_MESSAGE_BYTES:,}")
    fields = unpack(data)
    checked_version(fields.pop("version", 1), message_type)
    return validated(adapter, fields)
