"""The codec reads the examples of docs/how-to/publish-messages.md, as JSON and as msgpack."""

import json
import re
from pathlib import Path
from typing import Any

import msgpack
import pytest

from elasticflow.shared.messages import codec
from elasticflow.shared.messages.commands import (
    AmendJob,
    CancelJob,
    CancelLoad,
    OpenLoad,
    ProfileJob,
    QuoteDeadline,
    RequestCheckpoint,
    ReserveQuote,
    SealLoad,
    SetGpuLimits,
    SubmitJob,
)
from elasticflow.shared.messages.events import JobRejected

PAGE = (Path(__file__).parents[4] / "docs" / "how-to" / "publish-messages.md").read_text()
SHOWN = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]


def test_the_page_shows_each_command_and_a_reply() -> None:
    shown = [type(codec.decode(json.dumps(message).encode()).message) for message in SHOWN]
    assert shown == [
        SubmitJob,
        CancelJob,
        AmendJob,
        SetGpuLimits,
        ProfileJob,
        RequestCheckpoint,
        ReserveQuote,
        QuoteDeadline,
        OpenLoad,
        SealLoad,
        CancelLoad,
        JobRejected,
    ]


@pytest.mark.parametrize("message", SHOWN, ids=lambda message: message["type"])
def test_both_forms_have_the_same_content(message: dict[str, Any]) -> None:
    from_json = codec.decode(json.dumps(message).encode())
    from_msgpack = codec.decode(msgpack.packb(message))
    assert from_json == from_msgpack
    assert codec.validate(from_json.message) == ()


def test_the_spec_shown_is_complete_for_a_person() -> None:
    """Every field of the table is a field of the message."""
    table = PAGE.partition("| field of `spec` | meaning |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:] if line))
    spec = codec.decode(json.dumps(SHOWN[0]).encode()).message.spec  # type: ignore[union-attr]
    assert set(named) == set(type(spec).__dataclass_fields__)
