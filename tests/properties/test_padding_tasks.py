"""Tasks and results of padding loads survive the wire, and no other bytes stop their reader."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages.envelope.codec import Undecodable
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES, MAX_TEXT_LENGTH
from elasticflow.shared.messages.padding_tasks import (
    MAX_TASKS,
    TaskBundle,
    TaskResult,
    decode_bundle,
    decode_result,
    encode_bundle,
    encode_result,
    split_into_bundles,
)
from tests.support.example_specs import examples

pack = cast(Callable[[Any], bytes], msgpack.packb)  # it has no types
INDICES = st.integers(0, (1 << 40) - 1)
TASKS = st.lists(st.tuples(INDICES, st.binary(max_size=300)), min_size=1, max_size=30)
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
RESULT: dict[str, Any] = {"index": 1, "value": b"v", "attempts": 1, "task_s": 1.0, "node_id": "n"}
DECODERS: tuple[Callable[[bytes], Any], ...] = (decode_bundle, decode_result)
ENCODERS: tuple[Callable[[Any], bytes], ...] = (encode_bundle, encode_result)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | TEXT | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT | st.integers(0, 9), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def results(draw: st.DrawFn) -> TaskResult:
    outcome: dict[str, Any] = {"value": draw(st.binary())}
    if draw(st.booleans()):
        outcome = {"error": draw(TEXT.filter(bool)), "traceback": draw(TEXT)}
    return TaskResult(
        index=draw(INDICES),
        attempts=draw(st.integers(1, 1_000_000)),
        task_s=draw(st.floats(0, 1e11)),
        node_id=draw(st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)),
        **outcome,
    )


def is_read_or_refused(data: bytes) -> None:
    for decode, encode in zip(DECODERS, ENCODERS, strict=True):
        try:
            message = decode(data)
        except Undecodable as error:
            "\n".join(error.problems).encode()
        else:
            assert decode(encode(message)) == message


@given(tasks=TASKS)
def test_every_bundle_survives_the_wire(tasks: list[tuple[int, bytes]]) -> None:
    bundle = TaskBundle(tasks=tuple(tasks))
    assert decode_bundle(encode_bundle(bundle)) == bundle


@given(result=results())
def test_every_result_survives_the_wire(result: TaskResult) -> None:
    assert decode_result(encode_result(result)) == result


@examples(200)
@given(data=st.binary() | PLAIN.map(pack))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    is_read_or_refused(data)


@examples(200)
@given(data=st.data(), result=results(), tasks=TASKS)
def test_wrong_values_are_read_or_refused(
    data: st.DataObject, result: TaskResult, tasks: list[tuple[int, bytes]]
) -> None:
    for encoded in (encode_result(result), encode_bundle(TaskBundle(tasks=tuple(tasks)))):
        fields = msgpack.unpackb(encoded)
        fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(PLAIN)
        is_read_or_refused(pack(fields))
        is_read_or_refused(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
        flipped = bytearray(encoded)
        flipped[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
        is_read_or_refused(bytes(flipped))


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\x80",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff\x01",
        b"\x81" + pack("tasks") + b"\x91" * 5_000 + b"\x01",
        pack([1, 2]),
        bytes(MAX_MESSAGE_BYTES + 1),
    ],
    ids=lambda data: f"{len(data)} bytes",
)
def test_malformed_bytes_are_refused(decode: Callable[[bytes], Any], data: bytes) -> None:
    with pytest.raises(Undecodable):
        decode(data)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (RESULT | {"value": "text"}, "value"),
        (RESULT | {"value": None}, "either a value or an error"),
        (RESULT | {"error": "both"}, "either a value or an error"),
        (RESULT | {"index": -1}, "index"),
        (RESULT | {"index": True}, "index"),
        (RESULT | {"attempts": 0}, "attempts"),
        (RESULT | {"task_s": float("nan")}, "task_s"),
        (RESULT | {"node_id": "a.b"}, "node_id"),
        (RESULT | {"version": 2}, "TaskResult 2 is newer than 1"),
        (RESULT | {"version": "1"}, "version"),
    ],
)
def test_a_bad_field_of_a_result_is_named(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(Undecodable, match=problem):
        decode_result(pack(fields))


def test_a_field_of_a_later_writer_is_passed_over() -> None:
    assert decode_result(pack(RESULT | {"later": 1})) == TaskResult(**RESULT)
    fields = {"version": 1, "tasks": [(0, b"a")], "later": 1}
    assert decode_bundle(pack(fields)) == TaskBundle(tasks=((0, b"a"),))


@pytest.mark.parametrize("tasks", [[], [(0, b"")] * (MAX_TASKS + 1), [(0, "text")], [(0, b"", 1)], [0]])
def test_a_bad_bundle_is_refused(tasks: list[Any]) -> None:
    with pytest.raises(Undecodable, match="tasks"):
        decode_bundle(pack({"version": 1, "tasks": tasks}))


def test_the_text_of_a_failed_task_always_fits() -> None:
    failed = RESULT | {"value": None, "error": "\udc80" + "e" * 30_000, "traceback": "t" * 30_000 + "end"}
    read = decode_result(encode_result(TaskResult(**failed)))
    assert (len(read.error), len(read.traceback)) == (MAX_TEXT_LENGTH, MAX_TEXT_LENGTH)
    assert (read.error[:2], read.traceback[-3:]) == ("?e", "end")


def test_a_message_above_the_bound_is_not_encoded() -> None:
    with pytest.raises(TooLarge):
        encode_result(replace(TaskResult(**RESULT), value=bytes(MAX_MESSAGE_BYTES)))
    with pytest.raises(TooLarge):
        encode_bundle(TaskBundle(tasks=((0, bytes(MAX_MESSAGE_BYTES)),)))


@given(tasks=TASKS, max_bytes=st.integers(350, 2_000), max_tasks=st.integers(1, 10))
def test_bundles_hold_all_tasks_in_order_within_both_bounds(
    tasks: list[tuple[int, bytes]], max_bytes: int, max_tasks: int
) -> None:
    bundles = list(split_into_bundles(tasks, max_bytes=max_bytes, max_tasks=max_tasks))
    assert [task for bundle in bundles for task in bundle.tasks] == tasks
    assert all(len(encode_bundle(bundle)) <= max_bytes for bundle in bundles)
    assert all(1 <= len(bundle.tasks) <= max_tasks for bundle in bundles)


def test_splitting_reads_only_what_the_next_bundle_needs() -> None:
    endless = ((index, b"") for index in itertools.count())
    assert next(split_into_bundles(endless, max_bytes=1_000, max_tasks=3)).tasks == ((0, b""), (1, b""), (2, b""))
    assert list(split_into_bundles([], max_bytes=1_000, max_tasks=3)) == []


def test_a_task_that_fits_in_no_bundle_is_refused() -> None:
    with pytest.raises(TooLarge, match="task 7"):
        list(split_into_bundles([(7, bytes(1_000))], max_bytes=1_000, max_tasks=3))
