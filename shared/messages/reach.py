"""What a client and an executor say to each other about a running worker: its stacks, and commands beside it. Pure.

None of it is stored. A client sends on `subjects.reach`, and is answered on `subjects.reached` of its session. Each
side sends no more than a few parts before the other has taken them, so that no inbox overflows (docs/adr/0105).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast, get_args

import msgpack  # pyright: ignore[reportMissingTypeStubs]
from annotated_types import Ge, Le, Len
from pydantic import Strict, StringConstraints, TypeAdapter

from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.limits import Generation, Index, Text, Token

PART_BYTES = 32 * 1024  # of input or output in one message
PARTS_ON_THE_WAY = 16  # that the other side has not taken
STACKS_BYTES = 256 * 1024  # of one worker
MAX_COMMAND_LENGTH = 4_000  # characters, with the quotes of a shell
KEEP_EVERY_S, SILENT_AFTER_S = 2.0, 20.0  # a side that hears nothing for so long ends the session

_MAX_MESSAGE_BYTES = 2 * STACKS_BYTES

Session = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]  # not to be guessed: answers go there
Number = Annotated[int, Strict(), Ge(0), Le(1 << 53)]
Part = Annotated[bytes, Len(max_length=PART_BYTES)]
Words = Annotated[
    tuple[Annotated[str, StringConstraints(max_length=MAX_COMMAND_LENGTH, pattern=r"^[^\x00]*$")], ...],
    Len(min_length=1, max_length=256),
]
Cells = Annotated[int, Strict(), Ge(1), Le(10_000)]


# --- what a client sends -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FindWorkers:
    """Which workers of the job are here? rank: of the only one that is meant; None: all. with_stacks: and where each
    of their threads is."""

    session: Session
    job_id: Token
    rank: Index | None = None
    with_stacks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalSize:
    rows: Cells
    columns: Cells


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginCommand:
    """Run a command beside this worker. user: who asks, as the client says; nobody has checked it.

    terminal: None: standard input, output and error are three pipes. terminal_kind: TERM.
    """

    session: Session
    job_id: Token
    generation: Generation
    rank: Index
    command: Words
    user: Annotated[str, StringConstraints(max_length=200)] = ""
    terminal: TerminalSize | None = None
    terminal_kind: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._+-]{0,64}$")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendInput:
    """The next part of the input. number: counts from 1. is_last: nothing follows."""

    session: Session
    number: Number
    data: Part = b""
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeTerminal:
    session: Session
    size: TerminalSize


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOutput:
    """The client has taken the output up to this part. Repeated, it says that the client is there."""

    session: Session
    number: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class EndCommand:
    """Kill the command, if it runs."""

    session: Session


ToExecutor = FindWorkers | BeginCommand | SendInput | ResizeTerminal | TakeOutput | EndCommand

# --- what an executor answers --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWorker:
    """A worker that runs on this node. pid: there. stacks: of its threads. problem: why there are none."""

    node_id: Token
    generation: Generation
    rank: Index
    pid: Number
    stacks: Annotated[str, StringConstraints(max_length=STACKS_BYTES)] = ""
    problem: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllFound:
    """These were all workers of the job here. preparing: it starts here, and has no process so far."""

    node_id: Token
    num_workers: Number
    preparing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandBegan:
    pid: Number = 0  # of the worker


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRefused:
    """Nothing was run."""

    problem: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutput:
    """The next part of the output. number: counts from 1, standard error included."""

    number: Number
    data: Part
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenInput:
    """The command has taken the input up to this part. Repeated, it says that the executor is there."""

    number: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnded:
    """The last message. Either code or signal is None. reason: what ended it, if it did not end by itself."""

    num_outputs: Number
    code: Annotated[int, Strict(), Ge(0), Le(255)] | None = None
    signal: Annotated[int, Strict(), Ge(1), Le(255)] | None = None
    reason: Text = ""


FromExecutor = FoundWorker | AllFound | CommandBegan | CommandRefused | CommandOutput | TakenInput | CommandEnded

# --- bytes ---------------------------------------------------------------------------------------------

_pack = cast(Callable[..., bytes], msgpack.packb)  # pyright: ignore[reportUnknownMemberType]
_unpack = cast(Callable[..., object], msgpack.unpackb)  # pyright: ignore[reportUnknownMemberType]
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(kind) for kind in (*get_args(ToExecutor), *get_args(FromExecutor))
}
T = TypeVar("T")


def encode(message: ToExecutor | FromExecutor) -> bytes:
    """Raises ValueError for a message that no reader would take."""
    name = type(message).__name__
    fields = _ADAPTERS[name].dump_python(message, warnings=False)
    data = _pack([name, fields], unicode_errors="replace")
    _decoded(data)
    return data


def decode(data: bytes, *kinds: type[T]) -> T:
    """A message of one of these types. Raises Undecodable."""
    try:
        message = _decoded(data)
    except Exception as error:  # a stranger may have written these bytes: no kind of error is excluded
        raise Undecodable(f"{type(error).__name__}: {error}"[:500]) from None
    if not isinstance(message, kinds):
        raise Undecodable(f"{type(message).__name__} does not come from the other side")
    return message


def _decoded(data: bytes) -> object:
    if len(data) > _MAX_MESSAGE_BYTES:
        raise ValueError(f"{len(data):,} bytes are above {_MAX_MESSAGE_BYTES:,}")
    name, fields = cast(tuple[str, Any], _unpack(data, strict_map_key=False))
    return _ADAPTERS[name].validate_python(fields)
