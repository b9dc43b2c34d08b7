"""Bytes that are no message of ours, and subjects on which a hostile sender tries them."""

import json
from collections.abc import Iterator

import msgpack
import numpy as np

from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.codec import MESSAGE_TYPES
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES, MAX_SUBMISSION_BYTES
from testbed.real_pool import POOL

SEED = 0
SUBMIT, QUOTE, PLAN = subjects.submit("lab", POOL), subjects.quote("lab", POOL), subjects.plan(POOL)
TELEMETRY = subjects.telemetry(POOL, "node-0")
JOB, NODE = subjects.job(POOL, "intruder"), subjects.node(POOL, "intruder")
ENVELOPE = {"id": "hostile", "cause_id": "", "recorded_at_s": 0.0, "version": 1}


def hostile_bytes() -> Iterator[bytes]:
    """Bytes that are no message of ours: chance, wrong types, wrong sizes, unknown versions."""
    rng = np.random.default_rng(SEED)
    yield from (rng.bytes(length) for length in (1, 2, 3, 5, 8, 13, 100, 1000, 10_000))
    yield b""
    yield b"\x91" * 5000  # a list in a list in a list
    yield b"[" * 5000
    yield b"\xdd\xff\xff\xff\xff"  # a list of four billion things
    yield bytes(MAX_SUBMISSION_BYTES + 1)
    yield bytes(MAX_MESSAGE_BYTES)
    yield json.dumps({"type": "SubmitJob"}).encode()
    for wrong in (None, 0, "SubmitJob", [], {}, {"type": 7}, {"type": "SubmitJob", "payload": []}):
        yield packed(wrong)
    for name in MESSAGE_TYPES:
        yield packed(ENVELOPE | {"type": name, "version": 1000, "payload": {}})
        yield packed(ENVELOPE | {"type": name, "payload": {"job_id": ["a"], "node_id": 1, "events": {}, "at_s": "now"}})
    yield packed(ENVELOPE | {"type": "DropAllTables", "payload": {}})


def packed(value: object) -> bytes:
    data = msgpack.packb(value)
    assert isinstance(data, bytes)
    return data
