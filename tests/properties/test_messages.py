"""Every message survives the wire, and no other bytes stop a reader."""

import json
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.codec import MESSAGE_TYPES, UPCASTERS, Undecodable
from elasticflow.shared.messages.commands import CancelJob, SubmitJob
from elasticflow.shared.messages.events import ProfileCompleted
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.limits import (
    MAX_BATCH,
    MAX_GPU_TYPE_LENGTH,
    MAX_GPUS,
    MAX_MESSAGE_BYTES,
    DataUri,
    FilePath,
    Name,
)
from testbed.histories import spec
from tests.support.example_specs import examples
from tests.support.message_strategies import messages, messages_of

IDS = st.text(st.characters(codec="utf-8"), max_size=100)
TIMES_S = st.floats(0, 1e11)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(),
    st.text(st.characters(codec="utf-8")),
    st.binary(),
    st.builds(msgpack.ExtType, st.integers(0, 127), st.binary()),
    st.integers(0, 1 << 40).map(msgpack.Timestamp),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SCALARS, inner, max_size=4),
    max_leaves=12,
)


def plain(message: Any) -> dict[str, Any]:
    """The envelope of a message as maps and lists."""
    return msgpack.unpackb(codec.encode(message, id="id", recorded_at_s=1.0), strict_map_key=False)


def is_read_or_refused(data: bytes) -> None:
    """Whatever these bytes are, they can be passed on as a message or explained as a refusal."""
    try:
        envelope = codec.decode(data)
    except Undecodable as error:
        "\n".join(error.problems).encode()
    else:
        codec.encode(envelope.message, id=envelope.id, cause_id=envelope.cause_id, recorded_at_s=0.0)
    codec.id_in(data).encode()


@pytest.mark.parametrize("name", sorted(MESSAGE_TYPES))
@examples(15)
@given(data=st.data())
def test_every_message_survives_the_wire(name: str, data: st.DataObject) -> None:
    message = data.draw(messages_of(MESSAGE_TYPES[name]))
    id, cause_id, recorded_at_s = data.draw(IDS), data.draw(IDS), data.draw(TIMES_S)
    envelope = codec.decode(codec.encode(message, id=id, cause_id=cause_id, recorded_at_s=recorded_at_s))
    assert envelope == codec.Envelope(id=id, cause_id=cause_id, recorded_at_s=recorded_at_s, message=message)
    assert codec.validate(message) == ()


@given(value=st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, width=32))
def test_a_hyperparameter_keeps_its_type(value: bool | int | float) -> None:
    submission = {"training_function": "a:B", "global_batch_size": 1, "max_iterations": 1}
    submission |= {"hyperparameters": {"value": value}}
    payload = {"job_id": "a", "tenant": "b", "spec": submission}
    if value in (float("inf"), float("-inf")):
        return
    message = codec.decode(msgpack.packb({"type": "SubmitJob", "payload": payload})).message
    assert isinstance(message, SubmitJob)
    assert type(message.spec.hyperparameters["value"]) is type(value)
    assert message.spec.hyperparameters["value"] == value


@examples(200)
@given(st.binary(max_size=200) | ANYTHING.map(msgpack.packb))
def test_random_bytes_are_refused(data: bytes) -> None:
    is_read_or_refused(data)


@examples(200)
@given(st.text() | st.recursive(st.none() | st.integers() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_random_json_is_refused(text: str) -> None:
    is_read_or_refused(b'{"type": "CancelJob", "payload": {"job_id": %s}}' % text.encode(errors="replace"))


@examples(200)
@given(data=st.data(), message=messages(), junk=ANYTHING)
def test_a_wrong_value_anywhere_is_read_or_refused(data: st.DataObject, message: Any, junk: Any) -> None:
    envelope = plain(message)
    place: Any = envelope
    while True:
        key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
        deeper = place[key]
        if not isinstance(deeper, dict | list) or not deeper or data.draw(st.booleans()):
            break
        place = deeper
    place[key] = junk
    is_read_or_refused(msgpack.packb(envelope))


@examples(100)
@given(data=st.data(), message=messages())
def test_a_message_that_was_cut_or_flipped_is_read_or_refused(data: st.DataObject, message: Any) -> None:
    whole = codec.encode(message, id="id", recorded_at_s=1.0)
    is_read_or_refused(whole[: data.draw(st.integers(0, len(whole) - 1))])
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    is_read_or_refused(bytes(flipped))


@given(message=messages(), name=st.text(st.characters(codec="utf-8")))
@examples(50)
def test_fields_of_a_later_writer_are_passed_over(message: Any, name: str) -> None:
    envelope = plain(message)
    envelope["payload"] = {f"later_{name}": 1} | envelope["payload"]
    assert codec.decode(msgpack.packb(envelope)).message == message


@given(version=st.integers() | st.none() | st.text(max_size=5) | st.booleans())
@example(version=CancelJob.VERSION + 1)
@examples(100)
def test_unknown_versions_are_refused(version: Any) -> None:
    if type(version) is int and 1 <= version <= CancelJob.VERSION:
        return  # this one, or an older one that is still read
    with pytest.raises(Undecodable):
        codec.decode(json.dumps(plain(CancelJob(job_id="a", tenant="b")) | {"version": version}).encode())


def nested(depth: int, opening: bytes, closing: bytes = b"") -> bytes:
    return opening * depth + b"1" + closing * depth


@pytest.mark.parametrize("depth", [10, 300, 500, 900, 1_000, 5_000, 200_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    head = b"\x82" + msgpack.packb("type") + msgpack.packb("CancelJob") + msgpack.packb("payload") + b"\x81"
    for data in (
        head + msgpack.packb("job_id") + nested(depth, b"\x91"),
        b"\x81" + msgpack.packb("type") + nested(depth, b"\x91"),
        b'{"type":"CancelJob","payload":{"job_id":' + nested(depth, b"[", b"]") + b"}}",
        b'{"type":' + nested(depth, b"[", b"]") + b"}",
        nested(depth, b'{"a":', b"}"),
    ):
        with pytest.raises(Undecodable):
            codec.decode(data)


@pytest.mark.parametrize("depth", [2, 100, 300, 330])
def test_a_decision_within_a_decision_is_refused(depth: int) -> None:
    decision: dict[str, Any] = {
        "type": "PlanDecided",
        "payload": {"service": "a", "based_on": 1, "now_s": 1.0},
    }
    head, tail = msgpack.packb(decision | {"payload": decision["payload"] | {"events": [0]}})[:-1], b""
    with pytest.raises(Undecodable, match="PlanDecided"):
        codec.decode(head * depth + msgpack.packb(decision) + tail)


def test_a_message_above_the_bound_is_refused_on_both_ends() -> None:
    data = codec.encode(CancelJob(job_id="a", tenant="b"), id="id", recorded_at_s=0.0)
    with pytest.raises(Undecodable, match="above"):
        codec.decode(data, max_bytes=len(data) - 1)
    too_long = CancelJob(job_id="a", tenant="b", reason="x" * MAX_MESSAGE_BYTES)
    with pytest.raises(TooLarge, match="CancelJob"):
        codec.encode(too_long, id="id", recorded_at_s=0.0)


def test_a_header_that_claims_more_than_there_is_costs_nothing() -> None:
    for claim in (
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
    ):
        with pytest.raises(Undecodable):
            codec.decode(claim + b"\x01\x01")


def test_thousands_of_wrong_fields_are_counted_not_listed() -> None:
    wrong = {"node_id": "a", "incarnation": "b", "at_s": 1.0, "workers": [1] * 20_000}
    with pytest.raises(Undecodable) as refused:
        codec.decode(msgpack.packb({"type": "NodeReported", "payload": wrong}))
    assert refused.value.problems == ("payload: wrong in 20,000 places",)


def test_a_text_of_another_form_gets_an_error_that_names_the_form() -> None:
    spec = {"training_function": "train", "code_digest": "f00", "global_batch_size": 1, "max_iterations": 1}
    command = {"job_id": "no spaces", "tenant": "lab", "spec": spec}
    with pytest.raises(Undecodable) as refused:
        codec.decode(msgpack.packb({"type": "SubmitJob", "payload": command}))
    assert refused.value.problems == (
        "job_id: must be 1 to 64 letters, digits, _ and -, not 'no spaces'",
        "spec.training_function: must be like package.module:Class, not 'train'",
        "spec.code_digest: must be the 64 hexadecimal digits of a SHA-256, not 'f00'",
    )


@pytest.mark.parametrize("field", ["id", "cause_id", "type", "payload", "recorded_at_s"])
def test_json_that_no_msgpack_could_carry_is_refused(field: str) -> None:
    envelope: dict[str, Any] = {"type": "CancelJob", "payload": {"job_id": "a", "tenant": "b"}}
    codec.decode(json.dumps(envelope).encode())
    for foreign in ("\ud800", 1 << 70, {"\udfff": 1}):
        with pytest.raises(Undecodable):
            codec.decode(json.dumps(envelope | {field: foreign}).encode())


def test_every_bad_field_is_named() -> None:
    problems = codec.validate(CancelJob(job_id="not a token", tenant="", reason="x" * 20_001))
    assert [problem.split(":")[0] for problem in problems] == ["job_id", "tenant", "reason"]


# --- versions -------------------------------------------------------------------------------------------


def test_every_version_has_its_way_up() -> None:
    ways = {(name, old) for name, kind in MESSAGE_TYPES.items() for old in range(1, kind.VERSION)}
    assert set(UPCASTERS) == ways


def test_upcasters_are_applied_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CancelJob, "VERSION", 3)
    monkeypatch.setitem(UPCASTERS, ("CancelJob", 1), lambda p: {"job": p["name"], "steps": [1]})
    monkeypatch.setitem(
        UPCASTERS,
        ("CancelJob", 2),
        lambda p: {"job_id": p["job"], "tenant": "t", "reason": str([*p["steps"], 2])},
    )

    def read(version: int, **payload: Any) -> Any:
        return codec.decode(msgpack.packb({"type": "CancelJob", "version": version, "payload": payload})).message

    assert read(1, name="a") == CancelJob(job_id="a", tenant="t", reason="[1, 2]")
    assert read(2, job="a", steps=[]) == CancelJob(job_id="a", tenant="t", reason="[2]")
    assert read(3, job_id="a", tenant="t") == CancelJob(job_id="a", tenant="t")
    with pytest.raises(Undecodable, match="newer than 3"):
        read(4, job_id="a", tenant="t")
    with pytest.raises(Undecodable, match="version 1"):
        read(1, wrong="a")


LONGEST = spec(
    training_function=f"{'m' * 198}:{'F' * 101}",
    model_name="",
    global_batch_size=MAX_BATCH,
    gpu_type="T" * MAX_GPU_TYPE_LENGTH,
    min_gpus=MAX_GPUS // 2,
    max_gpus=MAX_GPUS,
    shard_optimizer=True,
)


@given(messages_of(SubmitJob).map(lambda submitted: submitted.spec) | st.just(LONGEST))
def test_each_job_has_a_profile_that_can_be_read(spec: JobSpec) -> None:
    """Otherwise a job with a long name would stop all planners."""
    measured = ProfileCompleted(profile_key=spec.profile_key, iterations_per_s={1: 1.0}, at_s=1.0)
    assert codec.decode(codec.encode(measured, id="id", recorded_at_s=1.0)).message == measured


@pytest.mark.parametrize("name", ["m" * 201, "two\nlines"])
def test_a_model_name_that_could_be_no_part_of_a_profile_key_is_refused(name: str) -> None:
    submitted = SubmitJob(job_id="a", spec=spec(model_name=name), tenant="t")
    with pytest.raises(Undecodable, match="model_name"):
        codec.decode(codec.encode(submitted, id="id", recorded_at_s=1.0))


@pytest.mark.parametrize("hidden", ["\x00", "\n", "\x85", "\u061c", "\u200e", "\u202e", "\u2028", "\u2067", "\ufeff"])
@pytest.mark.parametrize("taken", [Name, FilePath, DataUri])
def test_no_name_has_a_character_that_moves_or_hides_others(taken: Any, hidden: str) -> None:
    sound = f"{'s3://' if taken is DataUri else ''}josé/模型 \N{ZERO WIDTH JOINER}.py"
    assert TypeAdapter(taken).validate_python(sound) == sound
    with pytest.raises(ValidationError):
        TypeAdapter(taken).validate_python(sound.replace("型", f"型{hidden}"))
