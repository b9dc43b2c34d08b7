"""The bytes between a process and its children, such as workers and runners. Frames of msgpack. Pure.

Six kinds of stream socket, all private to one machine:

    executor <-> fork server    `forking`
    executor <-> worker         `to_worker`, `from_worker`
    executor <-> runner         `task_running`
    executor <-> preparer       `preparing`
    executor <-> command        `to_worker.CommandResult`
    client <-> training manager `to_worker`, `from_worker`, `training_tasks`

A frame is a length (4 bytes, big-endian) and msgpack `[type, fields]`.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, cast, get_args

import msgpack  # pyright: ignore[reportMissingTypeStubs]
from pydantic import TypeAdapter

from elasticflow.shared.messages.worker_protocol.forking import (
    EnterEnvironment,
    FromForkServer,
    FromPreparer,
    ToForkServer,
    ToPreparer,
)
from elasticflow.shared.messages.worker_protocol.from_worker import FromWorker
from elasticflow.shared.messages.worker_protocol.task_running import FromRunner, ToRunner
from elasticflow.shared.messages.worker_protocol.to_worker import CommandResult, ToWorker
from elasticflow.shared.messages.worker_protocol.training_tasks import FromManager

ChannelMessage = (
    ToWorker
    | FromWorker
    | FromManager
    | ToRunner
    | FromRunner
    | ToPreparer
    | FromPreparer
    | EnterEnvironment
    | CommandResult
    | ToForkServer
    | FromForkServer
)
Message = TypeVar("Message")
MAX_FRAME_BYTES = 1024 * 1024

_ADAPTERS: dict[str, TypeAdapter[Any]] = {t.__name__: TypeAdapter(t) for t in get_args(ChannelMessage)}
_LENGTH = struct.Struct(">I")
_pack = cast(Callable[..., bytes], msgpack.packb)  # pyright: ignore[reportUnknownMemberType]
_unpack = cast(Callable[..., object], msgpack.unpackb)  # pyright: ignore[reportUnknownMemberType]


class BrokenChannel(ValueError):
    """The other end sent bytes that are no message; nothing after them can be read."""


def encode_frame(message: ChannelMessage) -> bytes:
    """The message as one frame. Texts of users' code lose what UTF-8 cannot hold, such as the bytes of a file's name:
    "?" takes its place. Raises ValueError above MAX_FRAME_BYTES."""
    name = type(message).__name__
    body = _pack([name, _ADAPTERS[name].dump_python(message, warnings=False)], unicode_errors="replace")
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"{name} of {len(body):,} bytes is above {MAX_FRAME_BYTES:,}")
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[Message]):
    """Splits a stream of bytes, as it arrives, into messages of these types: those that the other end may send."""

    def __init__(self, *types: type[Message]) -> None:
        self._types = types
        self._pending = bytearray()

    @property
    def unread(self) -> bytes:
        """The bytes after the last message that was read."""
        return bytes(self._pending)

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete now, one by one. Raises BrokenChannel after the last readable one."""
        self._pending += data
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > MAX_FRAME_BYTES:
                raise BrokenChannel(f"a frame of {length:,} bytes is above {MAX_FRAME_BYTES:,}")
            end = _LENGTH.size + length
            if len(self._pending) < end:
                break
            body = bytes(self._pending[_LENGTH.size : end])
            del self._pending[:end]
            message = _decode(body)
            if not isinstance(message, self._types):
                raise BrokenChannel(f"{type(message).__name__} does not come from the other end")
            yield message


def _decode(body: bytes) -> ChannelMessage:
    try:
        name, fields = cast(tuple[str, object], _unpack(body, strict_map_key=False))
        return _ADAPTERS[name].validate_python(fields)
    except Exception as error:  # users' code may have written these bytes: no kind of error is excluded
        raise BrokenChannel(f"unreadable message: {type(error).__name__}: {error}"[:500]) from error
