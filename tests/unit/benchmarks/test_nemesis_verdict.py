"""The verdict on a run of the nemesis: a run that decided nothing is no clean one."""

import pytest

from benchmarks.nemesis.exclusive_pool import Amend, Call, Cancel, Quote, Read, Submit
from benchmarks.nemesis.linearizability import Operation
from benchmarks.nemesis.one_run import void


def answered(call: Call, reply: object) -> Operation[Call]:
    return Operation(call=call, reply=reply, invoked_s=0.0, returned_s=1.0)


def unanswered(call: Call) -> Operation[Call]:
    return Operation(call=call, reply=None, invoked_s=0.0)


@pytest.mark.parametrize(
    "history",
    [
        (),
        (answered(Read(), ("", 0)),),
        (unanswered(Submit("a")), unanswered(Cancel("a")), answered(Quote(), True), answered(Read(), ("", 0))),
    ],
)
def test_a_run_without_a_decided_command_is_void(history: tuple[Operation[Call], ...]) -> None:
    assert void(history) == ["void: no command was decided"]


@pytest.mark.parametrize(("call", "reply"), [(Submit("a"), False), (Amend("a", 5), True), (Cancel("a"), False)])
def test_one_decided_command_is_enough(call: Call, reply: bool) -> None:
    assert void([unanswered(Submit("b")), answered(call, reply)]) == []
