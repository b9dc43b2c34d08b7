"""A part of what a job has written on one node, as the bus keeps it (docs/adr/0066). Pure.

The chunks of a job and node are in a ring of NUM_SLOTS keys: chunk n is in slot n % NUM_SLOTS, and a newer one replaces
it. The newest chunk grows in its slot. A key beside the ring holds the number of the newest one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

from annotated_types import Ge, Le
from pydantic import Strict, StringConstraints, TypeAdapter, ValidationError

from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.limits import MAX_FEW_ITEMS, FewItems, Name, NumBytes

NUM_SLOTS = 128
CHUNK_LENGTH = 16 * 1024  # characters
NEWEST = "newest"  # the key beside the ring

T = TypeVar("T")
Number = Annotated[int, Strict(), Ge(0), Le(1 << 53)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """file: generation and rank, as "g2-r0". up_to: where the next line of the file begins, in bytes."""

    file: str
    text: str
    up_to: int

    @property
    def shown(self) -> str:
        return f"{self.file} | {self.text}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """text: whole lines of all the job's workers on the node. up_to: of each file, how much of it is in chunks up to
    this one. complete: the job has ended, and no other line follows."""

    number: Number = 0
    text: Annotated[str, StringConstraints(max_length=2 * CHUNK_LENGTH)] = ""
    up_to: Annotated[Mapping[Name, NumBytes], FewItems] = field(default_factory=dict[str, int])
    complete: bool = False


_CHUNK = TypeAdapter(LogChunk)
_NUMBER = TypeAdapter(Number)


def slot(number: int) -> str:
    """The key of a chunk within the ring."""
    return str(number % NUM_SLOTS)


def filled(chunk: LogChunk, lines: Iterable[LogLine]) -> Iterator[LogChunk]:
    """The chunk with these lines, and those that follow it when it is full."""
    text, up_to = [chunk.text], dict(chunk.up_to)
    length = len(chunk.text)
    for line in lines:
        if length and length + len(line.shown) > CHUNK_LENGTH:
            yield replace(chunk, text="".join(text), up_to=dict(up_to))
            chunk, text, length = replace(chunk, number=chunk.number + 1), [], 0
        text.append(line.shown)
        length += len(line.shown)
        up_to.pop(line.file, None)  # the newest file last
        up_to[line.file] = line.up_to
        if len(up_to) > MAX_FEW_ITEMS:
            del up_to[next(iter(up_to))]
    yield replace(chunk, text="".join(text), up_to=up_to)


def encode_chunk(chunk: LogChunk) -> bytes:
    return _CHUNK.dump_json(chunk)


def decode_chunk(data: bytes) -> LogChunk:
    """Raises Undecodable."""
    return _decoded(_CHUNK, data)


def decode_number(data: bytes) -> int:
    """The number of the newest chunk. Raises Undecodable."""
    return _decoded(_NUMBER, data)


def _decoded(adapter: TypeAdapter[T], data: bytes) -> T:
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        raise Undecodable(f"not a part of a log: {error.errors()[0]['msg']}") from None
