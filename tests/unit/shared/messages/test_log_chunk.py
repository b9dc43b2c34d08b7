"""How lines become chunks, and which bytes are none."""

import pytest

from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.log_chunk import (
    CHUNK_LENGTH,
    NUM_SLOTS,
    LogChunk,
    LogLine,
    decode_chunk,
    decode_number,
    encode_chunk,
    filled,
    slot,
)

LONG = "x" * (CHUNK_LENGTH // 2)


def test_a_chunk_grows_until_it_is_full_and_the_next_one_begins() -> None:
    before = LogChunk(number=5, text="g1-r0 | old\n", up_to={"g1-r0": 4})
    lines = [LogLine(file="g1-r0", text=LONG, up_to=10), LogLine(file="g1-r1", text=LONG, up_to=20)]
    first, second = filled(before, lines)
    assert (first.number, first.up_to) == (5, {"g1-r0": 10})
    assert first.text == f"g1-r0 | old\ng1-r0 | {LONG}\n"
    assert (second.number, second.text, second.up_to) == (6, f"g1-r1 | {LONG}\n", {"g1-r0": 10, "g1-r1": 20})
    assert decode_chunk(encode_chunk(second)) == second


def test_the_ring_begins_again_after_its_last_slot() -> None:
    assert slot(NUM_SLOTS + 3) == slot(3)
    assert len({slot(number) for number in range(NUM_SLOTS)}) == NUM_SLOTS


def test_only_the_newest_files_are_remembered() -> None:
    lines = [LogLine(file=f"g{number}-r0", text="x", up_to=1) for number in range(1, 301)]
    *_, last = filled(LogChunk(), lines)
    assert len(last.up_to) == 256
    assert "g300-r0" in last.up_to
    assert "g1-r0" not in last.up_to


@pytest.mark.parametrize("data", [b"", b"[]", b'{"number": -1}', b'{"text": 5}', b'{"up_to": {"f": "x"}}', b"\xff"])
def test_other_bytes_are_no_chunk(data: bytes) -> None:
    with pytest.raises(Undecodable):
        decode_chunk(data)


def test_a_newer_chunk_may_have_more_fields() -> None:
    assert decode_chunk(b'{"number": 3, "another": 1}') == LogChunk(number=3)


@pytest.mark.parametrize("data", [b"", b"-1", b"1.5", b"x", b"99999999999999999999"])
def test_other_bytes_are_no_number(data: bytes) -> None:
    with pytest.raises(Undecodable):
        decode_number(data)
