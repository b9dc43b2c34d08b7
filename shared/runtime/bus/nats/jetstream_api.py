"""The JetStream API in the terms of the bus: requests, and what their refusals mean for the caller."""

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from nats.aio.msg import Msg

from elasticflow.shared.errors import (
    BadSettings,
    BusRejected,
    ElasticFlowError,
    LedgerUnusable,
    MaybeStored,
    NoResponder,
    NotPermitted,
    RequestTimeout,
    ServerTooSmall,
    StorageFull,
    TooLarge,
    Unavailable,
    UnknownStream,
    WrongExpectedSequence,
)
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus.contract import DEFAULT_TIMEOUT_S, LedgerEnd, Value
from elasticflow.shared.runtime.bus.nats.connection import Connection, ConnectionBroke, status_of
from elasticflow.shared.runtime.bus.streams import largest_message

MESSAGE_ID = "Nats-Msg-Id"
EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
TTL = "Nats-TTL"

LEADER_CONTACT_S = 3.0  # a server waits at least 4 s for its leader before it elects another one

# Numbers of nats-server's errors.json.
_NO_CONSUMER = 10014
_NO_MESSAGE = 10037
_MESSAGE_TOO_LARGE = 10054
_NO_STREAM = 10059
_OTHER_CONFIGURATION = 10058
_WRONG_SEQUENCE = (10071, 10164)
_NO_CLUSTER = 10074
_PURGE_DENIED = 10110
_FULL = (10002, 10023, 10047, 10077)  # the account, resources, reserved by others, the stream's own bounds or the disk
_CONSUMER_GONE = 10149  # it was deleted while the server was making it again
_NOT_CREATED = 10012  # whatever the reason: a setting, or the files of one with its name that is being deleted
_BEING_DELETED = ("creating store for consumer", "no such file or directory", "directory not empty")
_NO_PEERS = 10005  # no server of the cluster has the space, or too few are known yet
_IN_PROCESS = 10158  # a message with the same id is on its way through the cluster


class Ack(NamedTuple):
    """sequence: of the message, or of the earlier one that has its id, if is_duplicate."""

    sequence: int
    is_duplicate: bool


async def publish_acked(
    connection: Connection,
    subject: str,
    data: bytes,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    expected: int | None = None,
) -> Ack:
    """Publish to a stream and wait until it is on disk."""
    if expected is not None:
        headers = {**headers, EXPECTED_LAST_SUBJECT_SEQUENCE: str(expected)}
    try:
        answer = await connection.request(subject, data, headers=headers, timeout_s=timeout_s)
    except (RequestTimeout, ConnectionBroke):
        raise MaybeStored(subject, headers.get(MESSAGE_ID, "")) from None
    except NoResponder:
        raise await _why_no_answer(connection, subject) from None
    ack = json.loads(answer.data)
    if (error := ack.get("error")) is not None:
        if error["err_code"] in _WRONG_SEQUENCE and expected is not None:
            raise WrongExpectedSequence(subject, expected, _last_number(error.get("description", "")))
        if error["err_code"] == _IN_PROCESS:
            raise MaybeStored(subject, headers.get(MESSAGE_ID, ""))
        if error["err_code"] == _MESSAGE_TOO_LARGE:
            raise TooLarge(subject, len(data), largest_message(subject))
        raise failure(error, subject, connection.url)
    return Ack(ack["seq"], ack.get("duplicate", False))


def check(answer: Mapping[str, Any], subject: str, url: str) -> None:
    """Raise what the answer's error means, if it has one."""
    if (error := answer.get("error")) is not None:
        raise failure(error, subject, url)


def failure(error: Mapping[str, Any], subject: str, url: str) -> ElasticFlowError:
    """What an error of the API means to us."""
    number, reason = error.get("err_code", 0), error.get("description", "no reason given")
    if number == _NO_STREAM:
        return UnknownStream(subject)
    if _is_full(error):
        return StorageFull(subject, reason)
    is_being_deleted = number == _CONSUMER_GONE or (
        number == _NOT_CREATED and any(part in reason for part in _BEING_DELETED)
    )
    if error.get("code") == 503 or number == _NO_PEERS or is_being_deleted:
        return Unavailable(url, reason)
    return BusRejected(subject, number, reason)


def _is_full(error: Mapping[str, Any]) -> bool:
    number, reason = error.get("err_code", 0), error.get("description", "")
    return number in _FULL or (number == _NO_PEERS and "insufficient storage" in reason)


async def ensure_stream(connection: Connection, config: Mapping[str, Any], reserved_bytes: int) -> int:
    """Create it if it is not there; else it stays as its operator has set it. Returns the number of its replicas.

    Only operators may create streams, so services look first. reserved_bytes: of the whole pool. Raises ServerTooSmall,
    BadSettings, NotPermitted.
    """
    name, replicas = config["name"], config["num_replicas"]
    if (there := await stream_config(connection, name)) is not None:
        return there["num_replicas"]
    answer = await connection.api(f"STREAM.CREATE.{name}", config, timeout_s=10.0)
    problem = answer.get("error", {}).get("err_code")
    if problem == _OTHER_CONFIGURATION and (there := await stream_config(connection, name)) is not None:
        return there["num_replicas"]  # another process with other settings was first
    if problem == _NO_CLUSTER:
        why = f"EF_REPLICAS={replicas}, but NATS at {connection.url} is a single server: set EF_REPLICAS=1"
        raise BadSettings((why,))
    if _is_full(answer.get("error", {})):
        raise ServerTooSmall(connection.url, "max_file_store", None, reserved_bytes)
    check(answer, name, connection.url)
    return answer["config"]["num_replicas"]


async def stream_config(connection: Connection, stream: str) -> dict[str, Any] | None:
    """The configuration of a stream; None if there is no such stream."""
    answer = await connection.api(f"STREAM.INFO.{stream}")
    if answer.get("error", {}).get("err_code") == _NO_STREAM:
        return None
    check(answer, stream, connection.url)
    return answer["config"]


async def check_account(connection: Connection, needed_bytes: int) -> None:
    """Raises ServerTooSmall if the account may store less."""
    answer = await connection.api("INFO")
    check(answer, "$JS.API.INFO", connection.url)
    limit_bytes = answer["limits"]["max_storage"]
    if 0 < limit_bytes < needed_bytes:  # -1: no limit; 0 in accounts with a limit for each number of replicas
        raise ServerTooSmall(connection.url, "max_file (of the account)", limit_bytes, needed_bytes)


async def storage_left(connection: Connection) -> int | None:
    """Bytes that the account may still store; None without a limit of its own. Raises NotPermitted."""
    answer = await connection.api("INFO")
    check(answer, "$JS.API.INFO", connection.url)
    limit_bytes = answer["limits"]["max_storage"]
    return limit_bytes - answer["storage"] if limit_bytes > 0 else None


async def delete_consumer(connection: Connection, stream: str, name: str) -> None:
    """No effect if there is none."""
    answer = await connection.api(f"CONSUMER.DELETE.{stream}.{name}")
    if answer.get("error", {}).get("err_code") != _NO_CONSUMER:
        check(answer, stream, connection.url)


async def stream_names(connection: Connection, subject: str) -> list[str]:
    """Streams that take messages on a subject (or on some subject of a pattern)."""
    names: list[str] = []
    while True:
        answer = await connection.api("STREAM.NAMES", {"subject": subject, "offset": len(names)})
        check(answer, subject, connection.url)
        page = answer.get("streams") or []
        names += page
        if not page or len(names) >= answer["total"]:
            return names


async def ledger_end(connection: Connection, stream: str) -> LedgerEnd:
    """The sequence of the newest message that the stream ever had, and the time of the server that leads it."""
    answer = await leader_info(connection, stream)
    return LedgerEnd(
        sequence=answer["state"]["last_seq"],
        at_s=datetime.fromisoformat(answer["ts"]).timestamp(),
        first=max(1, answer["state"]["first_seq"]),  # 0 of a stream that never had a message
    )


async def leader_info(connection: Connection, stream: str) -> dict[str, Any]:
    """What the server that leads a stream tells of it.

    Two other servers answer too: one that knows of no leader, with what it has itself, and one that was the leader
    until a partition, for 20 s. What others have stored since, they do not know. Raises Unavailable for both.
    """
    answer = await connection.api(f"STREAM.INFO.{stream}")
    check(answer, stream, connection.url)
    if (cluster := answer.get("cluster")) is not None:
        if not cluster.get("leader"):
            raise Unavailable(connection.url, f"a server answered that knows no leader of stream {stream}")
        replicas: list[dict[str, Any]] = cluster.get("replicas") or []
        if 2 * (1 + sum(map(_has_contact, replicas))) <= 1 + len(replicas):
            reason = f"{cluster['leader']}, which led stream {stream}, hears from no majority"
            raise Unavailable(connection.url, reason)
    return answer


def _has_contact(replica: Mapping[str, Any]) -> bool:
    """A leader's view of another server. It is current if it has all that the leader has applied."""
    return replica["current"] and not replica.get("offline") and replica["active"] < LEADER_CONTACT_S * 1e9


async def delete_first(connection: Connection, stream: str, *, up_to: int) -> None:
    """Delete the stream's messages up to a sequence, included. Raises LedgerUnusable."""
    answer = await connection.api(f"STREAM.PURGE.{stream}", {"seq": up_to + 1})
    if answer.get("error", {}).get("err_code") == _PURGE_DENIED:
        raise LedgerUnusable(
            "deletion_denied",
            f"stream {stream} was made with deny_purge, which NATS never takes back, so its archived messages stay on "
            "the disk; services start at the new epoch all the same. To free the disk, stop the pool and copy the "
            "stream: `nats stream backup`, then `nats stream rm`, then `nats stream restore --config` with "
            "deny_purge: false",
        )
    check(answer, stream, connection.url)


async def subjects_in(connection: Connection, stream: str, pattern: str) -> list[str]:
    """The subjects of the stream's messages that match a pattern."""
    found: list[str] = []
    while True:
        answer = await connection.api(f"STREAM.INFO.{stream}", {"subjects_filter": pattern, "offset": len(found)})
        check(answer, stream, connection.url)
        page = answer["state"].get("subjects") or {}
        found += page
        if not page or len(found) >= answer.get("total", 0):
            return found


async def stored_record(connection: Connection, stream: str, wanted: Mapping[str, Any]) -> LedgerRecord | None:
    """A message with its time, asked of the stream's leader. wanted: {"seq": 7}, or {"last_by_subj": subject}."""
    answer = await connection.api(f"STREAM.MSG.GET.{stream}", wanted)
    if answer.get("error", {}).get("err_code") == _NO_MESSAGE:
        return None
    check(answer, stream, connection.url)
    message = answer["message"]
    return LedgerRecord(
        sequence=message["seq"],
        subject=message["subject"],
        message_id="",
        stored_at_s=datetime.fromisoformat(message["time"]).timestamp(),
        data=base64.b64decode(message.get("data", "")),
    )


async def last_record(connection: Connection, stream: str, subject: str) -> LedgerRecord | None:
    """The newest message on a subject."""
    return await stored_record(connection, stream, {"last_by_subj": subject})


async def first_readable(connection: Connection, stream: str, sequence: int, *, directly: bool = False) -> int | None:
    """The sequence of the first message from this one on that the leader can read; None if it can read none.

    directly: that any server can read. Raises Unavailable, NotPermitted.
    """
    wanted = {"seq": sequence, "next_by_subj": ">"}
    if directly:
        found = await _read_directly(connection, f"$JS.API.DIRECT.GET.{stream}", json.dumps(wanted).encode(), stream)
        return None if found.headers is None or status_of(found) is not None else int(found.headers["Nats-Sequence"])
    answer = await connection.api(f"STREAM.MSG.GET.{stream}", wanted)
    if (error := answer.get("error")) is not None:
        if isinstance(refusal := failure(error, stream, connection.url), Unavailable | UnknownStream):
            raise refusal
        return None
    return int(answer["message"]["seq"])


async def last_message(connection: Connection, stream: str, subject: str) -> Value | None:
    """The newest message on a subject, asked of the stream's leader: a replica may lag behind."""
    record = await last_record(connection, stream, subject)
    return None if record is None else Value(data=record.data, revision=record.sequence)


async def message_in_replica(connection: Connection, stream: str, subject: str) -> Value | None:
    """The newest message on a subject, asked of any replica. The request names the subject, so it can be permitted."""
    answer = await _read_directly(connection, f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", subject)
    if status_of(answer) is not None or answer.headers is None:
        return None
    return Value(data=answer.data, revision=int(answer.headers["Nats-Sequence"]))


async def _read_directly(connection: Connection, call: str, request: bytes, subject: str) -> Msg:
    """subject: what is missing if no server answers. Raises Unavailable, UnknownStream."""
    try:
        return await connection.request(call, request, timeout_s=DEFAULT_TIMEOUT_S)
    except NoResponder:
        raise await _why_no_answer(connection, subject) from None
    except (RequestTimeout, ConnectionBroke) as error:
        raise Unavailable(connection.url, str(error) or "connection broke") from None


def _last_number(description: str) -> int | None:
    """The sequence that "wrong last sequence: 123" ends with, if the server reports it."""
    number = description.rsplit(" ", 1)[-1]
    return int(number) if number.isascii() and number.isdigit() else None


async def _why_no_answer(connection: Connection, subject: str) -> ElasticFlowError:
    try:
        names = await stream_names(connection, subject)
    except NotPermitted:
        return Unavailable(connection.url, f"no stream takes {subject}, or it has no leader")
    except ElasticFlowError as error:
        return error
    return Unavailable(connection.url, f"stream {names[0]} has no leader") if names else UnknownStream(subject)
