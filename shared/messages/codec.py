"""Bytes exist only here: a msgpack envelope around one message, checked field by field when it is read.

    {id, cause_id, type, version, recorded_at_s, payload}

A type grows by fields with defaults: older readers ignore the fields that they do not know. Any other change needs a
new VERSION, an upcaster, and an old message kept as bytes in the tests. JSON is accepted as well, so that a user can
publish a command with any NATS client; only msgpack is written.
"""

import json
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast, get_args

import msgpack  # pyright: ignore[reportMissingTypeStubs]
from pydantic import TypeAdapter, ValidationError

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.frozen_values import memoize_last
from elasticflow.shared.messages.commands import Command, QuoteDeadline
from elasticflow.shared.messages.events import Event, PlanDecided, PlanEvent, QueuePosition, Reply, Telemetry
from elasticflow.shared.messages.limits import (
    MAX_MESSAGE_BYTES,
    MAX_TIME_S,
    PATTERNS_IN_WORDS,
    TOKEN_PATTERN,
    ChainDigest,
    Sequence,
    TimeS,
    Token,
)

# Of all messages together: raise it with each new message type and each new VERSION of one.
READER_VERSION = 8

Message = Command | QuoteDeadline | PlanDecided | Event | Reply | Telemetry
SomeMessage = TypeVar("SomeMessage", bound=Message)
Fields = dict[str, Any]  # a payload

MESSAGE_TYPES: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}  # by wire name
# (name, version) -> a function from the payload of that version to that of the next. Empty until the first release.
UPCASTERS: dict[tuple[str, int], Callable[[Fields], Fields]] = {}

_pack = cast(Callable[..., bytes], msgpack.packb)  # pyright: ignore[reportUnknownMemberType]
_unpackb = cast(Callable[..., object], msgpack.unpackb)  # pyright: ignore[reportUnknownMemberType]

_COMMANDS = {kind.__name__: kind for kind in get_args(Command)}
_PLAN_EVENTS = {kind.__name__: kind for kind in get_args(PlanEvent)}
_MAX_PROBLEMS = 100  # in one error

_REPR = reprlib.Repr()
_REPR.maxstring = 80


class Undecodable(ValueError):
    """These bytes are not a valid message. problems: one line for each error."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A message with its origin. cause_id: id of the message that caused it, "" if none did."""

    id: str
    cause_id: str
    recorded_at_s: float
    message: Message


def encode(
    message: Message,
    *,
    id: str,
    cause_id: str = "",
    recorded_at_s: float,
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> bytes:
    """The message in its envelope, as msgpack. Texts lose what UTF-8 cannot hold: "?" takes its place, as in the words
    of an error; `validate` names such a field of a command. Raises TooLarge above max_bytes."""
    envelope = _tagged(message) | {"id": id, "cause_id": cause_id, "recorded_at_s": recorded_at_s}
    data = _pack(envelope, unicode_errors="replace")
    if len(data) > max_bytes:
        raise TooLarge(type(message).__name__, len(data), max_bytes)
    return data


def decode(data: bytes, *, max_bytes: int = MAX_MESSAGE_BYTES) -> Envelope:
    """The envelope in these bytes, every field checked. Raises Undecodable, naming each bad field."""
    if len(data) > max_bytes:
        raise Undecodable(f"message of {len(data):,} bytes is above {max_bytes:,}")
    envelope = unpack(data)
    id, cause_id = (_header(envelope, name) for name in ("id", "cause_id"))
    recorded_at_s = envelope.get("recorded_at_s", 0.0)
    if isinstance(recorded_at_s, bool) or not isinstance(recorded_at_s, int | float):
        raise Undecodable("recorded_at_s: must be a number of seconds since 1970")
    if not 0 <= recorded_at_s <= MAX_TIME_S:
        raise Undecodable(f"recorded_at_s: {recorded_at_s} is not a time in seconds since 1970")
    message = _from_tagged(envelope)
    return Envelope(id=id, cause_id=cause_id, recorded_at_s=float(recorded_at_s), message=message)


def is_repeat(stored: bytes, data: bytes) -> bool:
    """Whether two messages say the same, but for the times of their reports."""
    if stored == data:
        return True
    try:
        first, second = (_timeless(unpack(each)) for each in (stored, data))
    except Undecodable:
        return False
    return first == second


def _timeless(envelope: Fields) -> Fields:
    payload = envelope.get("payload")
    timeless = {**cast(Fields, payload), "at_s": 0.0} if isinstance(payload, dict) else payload
    return envelope | {"recorded_at_s": 0.0, "payload": timeless}


def checked(message: SomeMessage) -> SomeMessage:
    """A message built in Python, as its readers will have it. Raises Undecodable, naming each bad field."""
    return _from_tagged(_tagged(message))


def validate(message: Message) -> tuple[str, ...]:
    """The problems of a message built in Python, one line for each field; () if it is valid."""
    try:
        checked(message)
    except Undecodable as error:
        return error.problems
    return ()


def unpack(data: bytes) -> Fields:
    """The map in these bytes, nothing in it checked. Raises Undecodable."""
    try:
        if data[:1] == b"{":  # in msgpack this byte is a single integer, never an envelope
            data = _pack(json.loads(data))  # rejects numbers that msgpack cannot encode
        unpacked = _unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise Undecodable(f"neither msgpack nor JSON: {type(error).__name__}: {error}"[:300]) from error
    if not isinstance(unpacked, dict):
        raise Undecodable("must be a map of named fields")
    return cast(Fields, unpacked)


def _header(envelope: Fields, name: str) -> str:
    value = envelope.get(name, "")
    if not isinstance(value, str) or len(value) > 300:
        raise Undecodable(f"{name}: must be text of at most 300 characters")
    return value


@cache
def _adapter(message_type: type[Any]) -> TypeAdapter[Any]:
    """Built on first use: no process reads and writes messages of all types."""
    assert MESSAGE_TYPES[message_type.__name__] is message_type
    return TypeAdapter(message_type)


def _tagged(message: Message) -> Fields:
    if isinstance(message, PlanDecided):
        payload = _plan_payload(message)
    else:
        payload = _adapter(type(message)).dump_python(message, warnings=False)
    return {"type": type(message).__name__, "version": message.VERSION, "payload": payload}


@memoize_last  # called twice for each decision: for its id and for its bytes
def _plan_payload(decision: PlanDecided) -> Fields:
    return {
        "service": decision.service,
        "based_on": decision.based_on,
        "now_s": decision.now_s,
        "commands": [_tagged(command) for command in decision.commands],
        "queue_positions": decision.queue_positions,
        "chain": decision.chain,
        "events": [_tagged(event) for event in decision.events],
    }


def _from_tagged(tagged: object, known: Mapping[str, type[Any]] = MESSAGE_TYPES) -> Any:
    if not isinstance(tagged, dict):
        raise Undecodable("must be a map of type, version and payload")
    fields = cast(Fields, tagged)
    name, version, payload = fields.get("type"), fields.get("version", 1), fields.get("payload")
    message_type = known.get(name) if isinstance(name, str) else None
    if message_type is None:
        raise Undecodable(f"type: {_shown(name)} is unknown here; known are {', '.join(sorted(known))}")
    version = checked_version(version, message_type)
    if not isinstance(payload, dict):
        raise Undecodable("payload: must be a map of the message's fields")
    payload = cast(Fields, payload)
    for old in range(version, message_type.VERSION):
        payload = _upcast(message_type.__name__, old, payload)
    return _plan(payload) if message_type is PlanDecided else validated(_adapter(message_type), payload)


def checked_version(version: object, message_type: type[Any]) -> int:
    """A version that this reader knows. Raises Undecodable."""
    name = message_type.__name__
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise Undecodable(f"version: {_shown(version)} is not a version of {name}")
    if version > message_type.VERSION:
        raise Undecodable(f"version: {name} {version} is newer than {message_type.VERSION}, upgrade this reader")
    return version


def _upcast(name: str, old: int, payload: Fields) -> Fields:
    upcaster = UPCASTERS[name, old]
    try:
        return upcaster(payload)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Undecodable(f"payload: not a {name} of version {old}: {type(error).__name__}: {error}") from error


def validated(adapter: TypeAdapter[Any], payload: Fields) -> Any:
    """A payload as the type of the adapter, every field checked. Raises Undecodable, naming each bad field."""
    try:
        return adapter.validate_python(payload)
    except ValidationError as error:
        if error.error_count() > _MAX_PROBLEMS:  # millions of lines would take minutes
            raise Undecodable(f"payload: wrong in {error.error_count():,} places") from error
        raise Undecodable(*(problem_in(details) for details in error.errors(include_url=False))) from error


def problem_in(details: Any) -> str:
    """One of pydantic's errors as a line: "spec.seed: must be ..., not ..."."""
    place = ".".join(str(part) for part in details["loc"])
    is_shown = details["type"] != "missing" and "secrets" not in details["loc"]
    given = f", not {_shown(details['input'])}" if is_shown else ""
    if details["type"] == "string_pattern_mismatch":
        rule = PATTERNS_IN_WORDS[details["ctx"]["pattern"]]
    elif details["type"] == "string_unicode":
        rule = "must be text that UTF-8 can hold"
    else:
        rule = details["msg"].replace("Input should be", "must be")
    return f"{place}: {rule}{given}"


def _shown(value: object) -> str:
    """A value of any size and depth, shortened."""
    try:
        return f"{_REPR.repr(value):.80}"
    except ValueError:  # Python writes no integer of more than some thousand digits
        return "a number of thousands of digits"


@dataclass(frozen=True, slots=True)
class _PlanHeader:
    service: Token
    based_on: Sequence
    now_s: TimeS
    queue_positions: tuple[QueuePosition, ...] = ()
    chain: ChainDigest = ""


_PLAN_HEADER = TypeAdapter(_PlanHeader)


def _plan(payload: Fields) -> PlanDecided:
    header = validated(_PLAN_HEADER, payload)
    return PlanDecided(
        service=header.service,
        based_on=header.based_on,
        now_s=header.now_s,
        commands=_each(payload, "commands", _COMMANDS),
        queue_positions=header.queue_positions,
        chain=header.chain,
        events=_each(payload, "events", _PLAN_EVENTS),
    )


def _each(payload: Fields, name: str, known: Mapping[str, type[Any]]) -> tuple[Any, ...]:
    """The messages under this name. Their types must be in `known`, so that decisions cannot nest."""
    items = payload.get(name, [])
    if not isinstance(items, list):
        raise Undecodable(f"{name}: must be a list of messages")
    return tuple(_from_tagged(item, known) for item in cast(list[object], items))


def message_or_none(data: bytes) -> Message | None:
    """The message in these bytes; None if they are unreadable."""
    try:
        return decode(data).message
    except Undecodable:
        return None


def id_in(data: bytes) -> str:
    """The id of the job or load in a message that may be invalid otherwise, for the reply to its sender; "" if it has
    none."""
    try:
        envelope = unpack(data)
    except Undecodable:
        return ""
    payload = envelope.get("payload")
    fields = cast(Fields, payload) if isinstance(payload, dict) else {}
    id = fields.get("job_id", fields.get("load_id"))
    return id if isinstance(id, str) and re.fullmatch(TOKEN_PATTERN, id) else ""
