"""Recorded messages, kept as bytes: each can still be read, with the same content.

A new type or version gets a file of its own beside the old ones, which are never written again:
`recorded_messages/<type>-<version>.msgpack`.
"""

from pathlib import Path
from typing import Any

import msgpack
import pytest

from elasticflow.shared.messages import codec
from elasticflow.shared.messages.codec import MESSAGE_TYPES
from tests.support.recorded_bytes import contains

FOLDER = Path(__file__).parent / "recorded_messages"
RECORDED = sorted(FOLDER.glob("*.msgpack"))


def test_each_type_is_recorded_in_each_version() -> None:
    versions = {f"{name}-{n}" for name, kind in MESSAGE_TYPES.items() for n in range(1, kind.VERSION + 1)}
    assert {path.stem for path in RECORDED} == versions


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_message_can_still_be_read(path: Path) -> None:
    name, version = path.stem.split("-")
    data = path.read_bytes()
    envelope = codec.decode(data)
    assert (envelope.id, envelope.cause_id, envelope.recorded_at_s) == ("recorded", "cause", 1_800_000_000.5)
    assert type(envelope.message) is MESSAGE_TYPES[name]
    if int(version) == MESSAGE_TYPES[name].VERSION:
        again = codec.encode(envelope.message, id="recorded", cause_id="cause", recorded_at_s=envelope.recorded_at_s)
        assert contains(msgpack.unpackb(again, strict_map_key=False), msgpack.unpackb(data, strict_map_key=False))


def test_a_node_of_an_older_executor_names_no_type_and_no_memory() -> None:
    joined: Any = codec.decode((FOLDER / "NodeJoined-1.msgpack").read_bytes()).message
    assert (joined.gpu_type, joined.gpu_memory_bytes) == ("", 0)
