"""Tasks and results of padding loads survive the wire, and no other bytes stop their reader."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES, MAX_TEXT_LENGTH
from elasticflow.shared.messages.padding_tasks import (
    MAX_TASKS,
    ResultBatch,
    TaskBundle,
    TaskResult,
    decode_bundle,
    decode_results,
    encode_bundle,
    encode_results,
    split_into_batches,
)
from tests.support.example_specs import examples

pack = cast(Callable[[Any], bytes], msgpack.packb)  # it has no types
INDICES = st.integers(0, (1 << 40) - 1)
TASKS = st.lists(st.tuples(INDICES, st.binary(max_size=300)), min_size=1, max_size=30)
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
RESULT: dict[str, Any] = {"index": 1, "value": b"v", "attempts": 1, "task_s": 1.0, "node_id": "n"}
DECODERS: tuple[Callable[[bytes], Any], ...] = (decode_bundle, decode_results)
ENCODERS: tuple[Callable[[Any], bytes], ...] = (encode_bundle, encode_results)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | TEXT | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT | st.integers(0, 9), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def results(draw: st.DrawFn) -> TaskResult:
    outcome: dict[str, Any] = draw(
        st.sampled_from([{"file_digest": "a" * 64}])
        | st.fixed_dictionaries({"value": st.binary()})
        | st.fixed_dictionaries({"error": TEXT.filter(bool), "traceback": TEXT})
    )
    return TaskResult(
        index=draw(INDICES),
        attempts=draw(st.integers(1, 1_000_000)),
        task_s=draw(st.floats(0, 1e11)),
        node_id=draw(st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)),
        **outcome,
    )


def batch(*results: TaskResult) -> ResultBatch:
    return ResultBatch(results=results)


def packed(fields: dict[str, Any]) -> bytes:
    return pack({"version": 1, "results": [fields]})


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
    assert decode_results(encode_results(batch(result))) == batch(result)


@given(results=st.lists(results(), max_size=30, unique_by=lambda result: result.index % 50))
def test_results_of_any_tasks_are_batches_of_consecutive_ones(results: list[TaskResult]) -> None:
    results = [replace(result, index=result.index % 50) for result in results]
    batches = list(split_into_batches(results))
    assert [result for batch in batches for result in batch.results] == sorted(results, key=lambda r: r.index)
    assert all(following.first > before.last + 1 for before, following in pairwise(batches))
    assert all(decode_results(encode_results(batch)) == batch for batch in batches)


def test_large_results_are_split_over_messages_that_fit() -> None:
    large = [TaskResult(**RESULT | {"index": index, "value": bytes(400_000)}) for index in range(7)]
    batches = list(split_into_batches(large))
    assert [(batch.first, batch.last) for batch in batches] == [(0, 1), (2, 3), (4, 5), (6, 6)]
    assert all(len(encode_results(batch)) < 1 << 20 for batch in batches)


@examples(200)
@given(data=st.binary() | PLAIN.map(pack))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    is_read_or_refused(data)


@examples(200)
@given(data=st.data(), result=results(), tasks=TASKS)
def test_wrong_values_are_read_or_refused(
    data: st.DataObject, result: TaskResult, tasks: list[tuple[int, bytes]]
) -> None:
    for encoded in (encode_results(batch(result)), encode_bundle(TaskBundle(tasks=tuple(tasks)))):
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
        (RESULT | {"value": None}, "either a value, or"),
        (RESULT | {"error": "both"}, "either a value, or"),
        (RESULT | {"index": -1}, "index"),
        (RESULT | {"index": True}, "index"),
        (RESULT | {"attempts": 0}, "attempts"),
        (RESULT | {"task_s": float("nan")}, "task_s"),
        (RESULT | {"node_id": "a.b"}, "node_id"),
        (RESULT | {"file_digest": "b"}, "file_digest"),
    ],
)
def test_a_bad_field_of_a_result_is_named(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(Undecodable, match=problem):
        decode_results(packed(fields))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"version": 2}, "ResultBatch 2 is newer than 1"),
        ({"version": "1"}, "version"),
        ({"results": []}, "results"),
        ({"results": [RESULT, RESULT]}, "consecutive"),
    ],
)
def test_a_bad_batch_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(Undecodable, match=problem):
        decode_results(pack({"version": 1, "results": [RESULT]} | fields))


def test_a_field_of_a_later_writer_is_passed_over() -> None:
    assert decode_results(packed(RESULT | {"later": 1})) == batch(TaskResult(**RESULT))
    fields = {"version": 1, "tasks": [(0, b"a")], "later": 1}
    assert decode_bundle(pack(fields)) == TaskBundle(tasks=((0, b"a"),))


@pytest.mark.parametrize("tasks", [[], [(0, b"")] * (MAX_TASKS + 1), [(0, "text")], [(0, b"", 1)], [0]])
def test_a_bad_bundle_is_refused(tasks: list[Any]) -> None:
    with pytest.raises(Undecodable, match="tasks"):
        decode_bundle(pack({"version": 1, "tasks": tasks}))


def test_the_text_of_a_failed_task_always_fits() -> None:
    failed = RESULT | {"value": None, "error": "\udc80" + "e" * 30_000, "traceback": "t" * 30_000 + "end"}
    (read,) = decode_results(encode_results(batch(TaskResult(**failed)))).results
    assert (len(read.error), len(read.traceback)) == (MAX_TEXT_LENGTH, MAX_TEXT_LENGTH)
    assert (read.error[:2], read.traceback[-3:]) == ("?e", "end")


def test_a_message_above_the_bound_is_not_encoded() -> None:
    with pytest.raises(TooLarge):
        encode_results(batch(replace(TaskResult(**RESULT), value=bytes(MAX_MESSAGE_BYTES))))
    with pytest.raises(TooLarge):
        encode_bundle(TaskBundle(tasks=((0, bytes(MAX_MESSAGE_BYTES)),)))
