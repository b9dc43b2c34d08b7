"""The messages of a padding load's tasks as bytes: bundles to executors, results back.

    {version, tasks: [[index, input], ...], num_failures}
    {version, results: [{index, value, error, traceback, file_digest, attempts, task_s, node_id}, ...]}

They have no envelope: thousands arrive each second, and no ledger keeps them. The rules of `envelope.codec` apply: a
type grows by fields with defaults, and any other change needs a new VERSION. Inputs and values are bytes that only the
load's function reads.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, TypeVar, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]
from annotated_types import Ge, Gt, Le, Len
from pydantic import Strict, TypeAdapter

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages.codec import Undecodable, checked_version, unpack, validated
from elasticflow.shared.messages.limits import (
    MAX_MESSAGE_BYTES,
    MAX_TEXT_LENGTH,
    Digest,
    DurationS,
    TaskIndex,
    Text,
    Token,
)

MAX_TASKS = 10_000  # in one bundle
_MAX_TASK_HEAD_BYTES = 15  # of an encoded task, beside its input: 1 for the pair, 9 for the index, 5 for the length
_MAX_RESULT_HEAD_BYTES = 320  # of an encoded result, beside its value and texts
_MAX_RESULTS_BYTES = 1 << 20  # of a batch, unless one result has more

Binary = Annotated[bytes, Strict()]
Task = tuple[TaskIndex, Binary]  # its index within the load, and the input of the function
T = TypeVar("T", "TaskBundle", "ResultBatch")

_pack = cast(Callable[..., bytes], msgpack.packb)  # pyright: ignore[reportUnknownMemberType]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBundle:
    """Tasks of one load that an executor gets at once. num_failures: attempts of each that have failed before."""

    VERSION: ClassVar[int] = 1
    tasks: Annotated[tuple[Task, ...], Len(1, MAX_TASKS)]
    num_failures: Annotated[int, Strict(), Ge(0), Le(1_000_000)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task returned, or how it failed.

    value: the pickled result; None if it failed, or if its result lies in a file. error: "" if it returned.
    file_digest: SHA-256 of the file that has a large result, and its name.
    attempts: executions until this result. task_s: seconds of the last one. node_id: where that was.
    """

    index: TaskIndex
    value: Binary | None = None
    error: Text = ""
    traceback: Text = ""
    file_digest: Digest = ""
    attempts: Annotated[int, Strict(), Gt(0), Le(1_000_000)]
    task_s: DurationS
    node_id: Token

    def __post_init__(self) -> None:
        if (self.value is not None) + bool(self.error) + bool(self.file_digest) != 1:
            raise ValueError("must have either a value, or the digest of its file, or an error")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultBatch:
    """The results of consecutive tasks, in order."""

    VERSION: ClassVar[int] = 1
    results: Annotated[tuple[TaskResult, ...], Len(1, MAX_TASKS)]

    def __post_init__(self) -> None:
        first = self.results[0].index
        if any(result.index != first + offset for offset, result in enumerate(self.results)):
            raise ValueError("must have consecutive indices")

    @property
    def first(self) -> int:
        return self.results[0].index

    @property
    def last(self) -> int:
        return self.results[-1].index


_BUNDLE = TypeAdapter(TaskBundle)
_RESULTS = TypeAdapter(ResultBatch)
_RESULT_DEFAULTS = {field.name: field.default for field in fields(TaskResult)}


def encode_bundle(bundle: TaskBundle) -> bytes:
    """Encode a bundle as msgpack. Raises TooLarge above MAX_MESSAGE_BYTES."""
    content = {"version": TaskBundle.VERSION, "tasks": bundle.tasks, "num_failures": bundle.num_failures}
    return _bounded("TaskBundle", _pack(content))


def decode_bundle(data: bytes) -> TaskBundle:
    """Every field checked. Raises Undecodable, naming each bad field."""
    return _decode(data, TaskBundle, _BUNDLE)


def encode_results(batch: ResultBatch) -> bytes:
    """Encode a batch of results as msgpack. Raises TooLarge above MAX_MESSAGE_BYTES.

    An error of a task must reach its user: text is cut to MAX_TEXT_LENGTH, and replaced where UTF-8 cannot encode it.
    """
    content = {"version": ResultBatch.VERSION, "results": [_result_fields(result) for result in batch.results]}
    return _bounded("ResultBatch", _pack(content, unicode_errors="replace"))


def _result_fields(result: TaskResult) -> dict[str, object]:
    """The fields that differ from their defaults: a batch has thousands of results, and a field of each costs bytes."""
    content = {name: value for name, default in _RESULT_DEFAULTS.items() if (value := getattr(result, name)) != default}
    if result.error:
        content["error"] = result.error[:MAX_TEXT_LENGTH]
        content["traceback"] = result.traceback[-MAX_TEXT_LENGTH:]
    return content


def decode_results(data: bytes) -> ResultBatch:
    """Every field checked. Raises Undecodable, naming each bad field."""
    return _decode(data, ResultBatch, _RESULTS)


def split_into_batches(results: Iterable[TaskResult]) -> Iterator[ResultBatch]:
    """Results of any indices, as batches of consecutive ones that can be encoded."""
    batch: list[TaskResult] = []
    num_bytes = 0
    for result in sorted(results, key=lambda result: result.index):
        size = _MAX_RESULT_HEAD_BYTES + len(result.value or b"") + 4 * len(result.error + result.traceback)
        follows = batch and result.index == batch[-1].index + 1 and len(batch) < MAX_TASKS
        if batch and not (follows and num_bytes + size <= _MAX_RESULTS_BYTES):
            yield ResultBatch(results=tuple(batch))
            batch, num_bytes = [], 0
        batch.append(result)
        num_bytes += size
    if batch:
        yield ResultBatch(results=tuple(batch))


def encoded_task_bytes(task_input: bytes) -> int:
    """The most that a task adds to an encoded bundle."""
    return _MAX_TASK_HEAD_BYTES + len(task_input)


def _bounded(name: str, data: bytes) -> bytes:
    if len(data) > MAX_MESSAGE_BYTES:
        raise TooLarge(name, len(data), MAX_MESSAGE_BYTES)
    return data


def _decode(data: bytes, message_type: type[T], adapter: TypeAdapter[T]) -> T:
    if len(data) > MAX_MESSAGE_BYTES:
        raise Undecodable(f"message of {len(data):,} bytes is above {MAX_MESSAGE_BYTES:,}")
    content = unpack(data)
    checked_version(content.pop("version", 1), message_type)
    return validated(adapter, content)
