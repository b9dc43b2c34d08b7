"""The checker of histories, and the model of a pool with space for one job."""

import itertools

import numpy as np
import pytest

from benchmarks.nemesis.linearizability import (
    FIRST_ITERATIONS,
    Amend,
    Call,
    Cancel,
    Held,
    Operation,
    Quote,
    Read,
    Submit,
    exclusive_pool,
    linearization,
)
from benchmarks.nemesis.one_run import void


def is_linearizable(*history: Operation[Call]) -> bool:
    return linearization(history, exclusive_pool, Held()) is not None


def at(invoked_s: float, returned_s: float, call: Call, reply: object) -> Operation[Call]:
    return Operation(call=call, reply=reply, invoked_s=invoked_s, returned_s=returned_s)


def without_reply(invoked_s: float, call: Call) -> Operation[Call]:
    return Operation(call=call, reply=None, invoked_s=invoked_s)


def test_one_call_after_another_has_the_replies_of_the_pool() -> None:
    history = [
        at(0, 1, Quote(), True),
        at(2, 3, Submit("a"), True),
        at(4, 5, Submit("b"), False),
        at(6, 7, Amend("a", 5), True),
        at(8, 9, Amend("b", 5), False),
        at(10, 11, Read(), ("a", 5)),
        at(12, 13, Cancel("a"), True),
        at(14, 15, Cancel("a"), True),
        at(16, 17, Cancel("b"), False),
        at(18, 19, Read(), ("", 0)),
    ]
    assert is_linearizable(*history)


@pytest.mark.parametrize(
    "history",
    [
        (at(0, 1, Submit("a"), True), at(2, 3, Submit("b"), True)),
        (at(0, 1, Submit("a"), False),),
        (at(0, 1, Submit("a"), True), at(2, 3, Quote(), True)),
        (at(0, 1, Submit("a"), True), at(2, 3, Cancel("a"), False)),
        (at(0, 1, Submit("a"), True), at(2, 3, Amend("a", 5), True), at(4, 5, Read(), ("a", FIRST_ITERATIONS))),
        (at(0, 1, Submit("a"), True), at(0, 3, Submit("b"), True), at(4, 5, Read(), ("a", FIRST_ITERATIONS))),
        (at(0, 1, Submit("a"), True), at(2, 3, Cancel("a"), True), at(4, 5, Amend("a", 5), True)),
    ],
)
def test_a_reply_that_no_order_explains_is_found(history: tuple[Operation[Call], ...]) -> None:
    assert not is_linearizable(*history)


def test_calls_at_the_same_time_may_take_effect_in_any_order() -> None:
    for admitted in ("a", "b"):
        history = (at(0, 3, Submit("a"), admitted == "a"), at(1, 2, Submit("b"), admitted == "b"))
        assert is_linearizable(*history, at(4, 5, Read(), (admitted, FIRST_ITERATIONS)))


def test_a_call_without_a_reply_may_take_effect_late_or_never() -> None:
    lost = without_reply(0, Submit("a"))
    assert is_linearizable(lost, at(1, 2, Quote(), True), at(8, 9, Quote(), False))
    assert is_linearizable(lost, at(1, 2, Submit("b"), True))
    assert is_linearizable(lost, at(1, 2, Submit("b"), False))
    assert not is_linearizable(lost, at(1, 2, Submit("b"), False), at(3, 4, Read(), ("", 0)))


def test_many_calls_at_the_same_time_are_explained() -> None:
    """Each may come first: without a rule for those that change nothing there would be 2^60 ways."""
    held = at(0, 1, Submit("a"), True)
    quotes = [at(0, 99, Quote(), number % 2 == 0) for number in range(60)]
    assert is_linearizable(held, *quotes, at(2, 3, Cancel("a"), True))
    assert not is_linearizable(*quotes)


def test_each_order_of_a_random_pool_is_found_and_one_wrong_reply_too() -> None:
    """The replies of a pool that takes the calls at one instant within each; then one reply is inverted."""
    num_wrong = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        history, held = list[Operation[Call]](), Held()
        for number in range(12):
            other = f"job-{rng.integers(12)}"
            calls = (Submit(f"job-{number}"), Cancel(held.job_id or other), Amend(other, 7), Quote())
            call: Call = calls[rng.integers(4)]
            (following,) = itertools.chain(
                exclusive_pool(held, call, True), exclusive_pool(held, call, False)
            )  # one of both replies is possible
            reply = bool(list(exclusive_pool(held, call, True)))
            held = following
            history.append(at(number - rng.uniform(0, 2), number + rng.uniform(0, 2), call, reply))
        history.append(at(99, 100, Read(), (held.job_id, held.iterations)))
        assert is_linearizable(*history)
        alone = [
            Operation(call=each.call, reply=each.reply, invoked_s=index, returned_s=index)
            for index, each in enumerate(history)
        ]
        wrong = int(rng.integers(12))
        alone[wrong] = at(wrong, wrong, history[wrong].call, not history[wrong].reply)
        num_wrong += not is_linearizable(*alone)
    assert num_wrong == 200


# --- the verdict ---------------------------------------------------------------------------------------


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
