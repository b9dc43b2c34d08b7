"""Decisions that are larger than one message: no command loses its answer."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages.commands import CancelJob, Command
from elasticflow.shared.messages.events import CancelRejected, PlanDecided, PlanEvent
from elasticflow.shared.runtime.service import ledger_encoding
from elasticflow.shared.runtime.service.command_queue import Pending
from elasticflow.shared.runtime.service.host import Decider, DecideResult
from elasticflow.shared.state.policy import Policy, UserReplies, finished
from elasticflow.shared.state.pool import PoolState

LIMIT = 3_000  # bytes of a decision
INSTANCE = "one"


def event(job_id: str, size: int) -> CancelRejected:
    return CancelRejected(job_id=job_id, explanation="x" * size, at_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a policy decides, and where it cuts.

    answers: of the commands, in order; None: the command repeats another and changes nothing. before, after: what is
    due without a command. keeps: how many of the events `shorten` keeps, each time it is asked.
    """

    answers: tuple[CancelRejected | None, ...]
    before: tuple[CancelRejected, ...]
    after: tuple[CancelRejected, ...]
    keeps: tuple[float, ...]
    knows_answers: bool  # or else any event may be one

    @property
    def commands(self) -> tuple[Command, ...]:
        return tuple(CancelJob(job_id=f"job-{number}", tenant="lab") for number in range(len(self.answers)))


def sized(prefix: str, sizes: list[int]) -> tuple[CancelRejected, ...]:
    return tuple(event(f"{prefix}-{number}", size) for number, size in enumerate(sizes))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Some events fill a message; only answers may be larger than one."""
    size = st.integers(0, LIMIT // 2)
    answer_size = st.none() | st.one_of(size, size, st.integers(0, 2 * LIMIT))
    sizes = draw(st.lists(answer_size, min_size=1, max_size=5))
    return Case(
        answers=tuple(None if n is None else event(f"job-{number}", n) for number, n in enumerate(sizes)),
        before=sized("before", draw(st.lists(size, max_size=4))),
        after=sized("after", draw(st.lists(size, max_size=4))),
        knows_answers=draw(st.booleans()),
        keeps=tuple(draw(st.lists(st.floats(0.0, 0.99), min_size=1, max_size=10))),
    )


State = frozenset[str]  # of what is due without a command: the jobs on which it is decided


def policy_of(case: Case) -> Policy[State]:
    answers = dict(zip(case.commands, case.answers, strict=True))
    keeps = iter(case.keeps * 100)

    def decide(state: State, commands: tuple[Command, ...], now_s: float) -> tuple[PlanEvent, ...]:
        before, after = ([e for e in due if e.job_id not in state] for due in (case.before, case.after))
        answered = [answer for command in commands if (answer := answers[command]) is not None]
        return (*before, *answered, *after)

    def shorten(events: tuple[PlanEvent, ...]) -> tuple[PlanEvent, ...] | None:
        return events[: max(1, int(next(keeps) * len(events)))] if len(events) > 1 else None

    return Policy(
        service="admission",
        start=lambda pool: frozenset(),
        pool=lambda state: PoolState(),
        evolve=lambda state, message, sequence: state,
        decide=decide,
        observe=lambda state, local_event, now_s: state,
        wake_at_s=lambda state: None,
        shorten=shorten,
        user_replies=UserReplies(
            is_answer=lambda event, command: not case.knows_answers or getattr(event, "job_id", "") == command.job_id
        ),
    )


def decided(case: Case) -> Iterator[DecideResult]:
    """Let the decider decide until no command waits, as the host does."""
    policy, state = policy_of(case), frozenset[str]()
    items: list[Any] = [SimpleNamespace(sequence=n, stored_at_s=0.0) for n, _ in enumerate(case.commands)]
    waiting = [Pending(command=c, envelope_id="", item=item) for c, item in zip(case.commands, items, strict=True)]
    decider = Decider(policy, INSTANCE, lambda max_commands: tuple(waiting[:max_commands]))
    while waiting:
        result = finished(decider.decide(state, "", 0.0))
        yield result
        assert result.taken or result.decision is not None, "a round without an effect repeats for ever"
        del waiting[: len(result.taken)]
        if result.decision is not None:
            state |= {e.job_id for e in result.decision.events if isinstance(e, CancelRejected)}


@given(case=cases())
def test_each_command_is_answered_in_full_or_rejected_as_too_large(case: Case) -> None:
    answers = dict(zip(case.commands, case.answers, strict=True))
    settled: list[Command] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_encoding, "MAX_MESSAGE_BYTES", LIMIT + ledger_encoding.MAX_HEADER_BYTES)
        for result in decided(case):
            commands = [pending.command for pending in result.taken]
            settled += commands
            if result.too_large is not None:
                (command,) = commands
                assert not fits(command, answers[command]), "its answer alone fits into a message"
                continue
            expected = {answer for command in commands if (answer := answers[command]) is not None}
            events: set[Any] = set() if result.decision is None else set(result.decision.events)
            assert expected <= events, "a command is acknowledged, and its answer is not in the ledger"
    assert settled == list(case.commands), "each command once, in order"


def fits(command: Command, answer: CancelRejected | None) -> bool:
    assert answer is not None
    decision = PlanDecided(service="admission", based_on=0, now_s=0.0, commands=(command,), events=(answer,))
    try:
        ledger_encoding.decision_id(decision, INSTANCE)
    except TooLarge:
        return False
    return True
