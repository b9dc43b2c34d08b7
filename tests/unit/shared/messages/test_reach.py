"""What clients and executors say about running workers: only what is valid passes."""

from typing import get_args

import msgpack
import pytest

from elasticflow.shared.messages import reach, subjects
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.reach import (
    PART_BYTES,
    BeginCommand,
    CommandEnded,
    CommandOutput,
    EndCommand,
    FromExecutor,
    SendInput,
    TerminalSize,
    ToExecutor,
)

SESSION = "0123456789abcdef" * 2
ORDER = BeginCommand(
    session=SESSION,
    job_id="digits",
    generation=2,
    rank=1,
    command=("printf", "%s", "\u202e \x1b[2J\n' $(id)"),
    terminal=TerminalSize(rows=24, columns=80),
    terminal_kind="xterm-256color",
)


@pytest.mark.parametrize(
    "sent", [ORDER, SendInput(session=SESSION, number=1, data=b"\x00\xff"), CommandEnded(num_outputs=0)]
)
def test_a_message_arrives_as_it_was_sent(sent: ToExecutor | FromExecutor) -> None:
    assert reach.decode(reach.encode(sent), type(sent)) == sent


@pytest.mark.parametrize(
    "wrong",
    [
        {"session": "*"},
        {"session": "a.b"},
        {"job_id": "a.b"},
        {"command": ()},
        {"command": ("a\x00b",)},
        {"command": ("x",) * 257},
        {"terminal_kind": "xterm;id"},
        {"terminal": {"rows": 0, "columns": 80}},
        {"rank": -1},
    ],
)
def test_what_is_out_of_bounds_is_no_message(wrong: dict[str, object]) -> None:
    name, fields = msgpack.unpackb(reach.encode(ORDER))
    with pytest.raises(Undecodable):
        reach.decode(msgpack.packb([name, fields | wrong]) or b"", *get_args(ToExecutor))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"[]", b"\x92\xa1?\x80", bytes(600_000)])
def test_other_bytes_are_no_message(data: bytes) -> None:
    with pytest.raises(Undecodable):
        reach.decode(data, *get_args(ToExecutor), *get_args(FromExecutor))


def test_each_side_takes_only_what_the_other_one_says() -> None:
    with pytest.raises(Undecodable, match="EndCommand does not come from the other side"):
        reach.decode(reach.encode(EndCommand(session=SESSION)), *get_args(FromExecutor))


def test_a_part_that_is_too_large_is_an_error_of_its_sender() -> None:
    with pytest.raises(ValueError, match="at most"):
        reach.encode(CommandOutput(number=1, data=bytes(PART_BYTES + 1)))


def test_the_subject_of_a_request_names_its_tenant() -> None:
    assert subjects.sender(subjects.reach("lab", "pool", "node")) == "lab"
