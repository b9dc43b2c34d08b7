"""Virtual time: an asyncio event loop, for the real hosts; and a heap of callbacks, for policies without processes.

Both have a clock that jumps from one callback to the next.
"""

import asyncio
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from typing import Any

from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.policy import LedgerMessage, Policy
from elasticflow.shared.state.pool import PoolState

CHECK_EVERY_S = 0.5  # virtual, between two evaluations of the condition that ends a run

PROCESS: ContextVar[str] = ContextVar("process", default="")
"""The simulated process to which tasks and timers of this context belong, "" for none: see `VirtualTimeLoop.pause`."""


class NothingScheduled(RuntimeError):
    """The loop waits, no callback is ready and no timer is set: nothing can ever happen again."""


class _Timer(asyncio.TimerHandle):
    """A timer; timers of one instant keep the order in which they were set."""

    __slots__ = ("order",)

    order: tuple[float, int]  # instant, ticket

    def __lt__(self, other: Any) -> bool:
        return self.order < other.order


class _Ready(deque[asyncio.Handle]):
    """What is ready to run. Callbacks of paused processes stay ready until they are resumed."""

    def __init__(self, loop: "VirtualTimeLoop") -> None:
        super().__init__()
        self.paused: dict[str, list[asyncio.Handle]] = {}
        self._nothing = asyncio.Handle(lambda: None, (), loop)
        self._nothing.cancel()

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        if self.paused:
            kept = self.paused.get(handle._context.get(PROCESS) or "")  # pyright: ignore[reportAttributeAccessIssue]
            if kept is not None:
                kept.append(handle)
                return self._nothing
        return handle


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """now_s: the first instant, in seconds since 1970 or since any other origin.

    The first exception of a callback, or of a task started by `spawn`, stops the loop and is raised by `advance_to` and
    `settle`.
    """

    _scheduled: list[_Timer]

    def __init__(self, now_s: float = 0.0) -> None:
        super().__init__()
        self._tickets = itertools.count()
        self._stops_when_idle = False
        self._failure: BaseException | None = None
        self._spawned: dict[asyncio.Task[None], None] = {}  # those that run, in the order of their start
        self._ready = _Ready(self)
        self._selector = self  # BaseEventLoop asks its selector to wait for I/O: here that is the jump
        self._set_time(now_s)
        self.set_exception_handler(_keep_failure)

    # -- virtual time ------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self._now_s

    def time(self) -> float:
        return self._now_s

    def after(self, delay_s: float, callback: Callable[[], object]) -> None:
        """Call back after delay_s; at once, behind what is ready already, where that is 0. It belongs to no process."""
        if delay_s > 0:
            self.call_at(self._now_s + delay_s, callback, context=Context())
        else:
            self.call_soon(callback, context=Context())

    def pause(self, process: str) -> None:
        """Stop a process as SIGSTOP does: nothing of it runs until it is resumed. Its timers and messages wait."""
        self._ready.paused.setdefault(process, [])

    def resume(self, process: str) -> None:
        """Continue a process as SIGCONT does: run what has become ready meanwhile, in this order."""
        self._ready.extend(self._ready.paused.pop(process, ()))

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        timer.order = (when, next(self._tickets))
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # as BaseEventLoop.call_at does
        return timer

    def select(self, timeout: float | None) -> list[Any]:
        """The loop has nothing to run for so long: jump to its next timer, or stop. The timer at its head is live."""
        if timeout == 0:
            return []
        if self._stops_when_idle:
            self.stop()
        elif not self._scheduled:
            raise NothingScheduled(f"nothing is scheduled after {self._now_s}")
        else:
            self._set_time(max(self._now_s, self._scheduled[0].when()))
        return []

    def _set_time(self, now_s: float) -> None:
        self._now_s = now_s
        self._clock_resolution = math.ulp(now_s)  # a timer is due at its instant, and not before

    # -- running -----------------------------------------------------------------------------------------

    def advance_to(self, at_s: float, done: Callable[[], bool] | None = None) -> None:
        """Run until at_s, or until done(), which is evaluated now and then."""
        if done is not None and done():
            return
        end = self.call_at(at_s, self.stop)
        checks = None if done is None else _Repeated(self, lambda: self.stop() if done() else None)
        try:
            self._run()
        finally:
            end.cancel()
            if checks is not None:
                checks.cancel()

    def settle(self) -> None:
        """Run whatever can run at this instant."""
        self._stops_when_idle = True
        try:
            self._run()
        finally:
            self._stops_when_idle = False

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str, process: str = "") -> "asyncio.Task[None]":
        """A task whose failure stops the loop. process: to which it belongs, with all tasks that it creates."""
        context = copy_context()
        context.run(PROCESS.set, process)
        task = self.create_task(coroutine, name=name, context=context)
        self._spawned[task] = None
        task.add_done_callback(self._ended)
        return task

    def finish(self) -> None:
        """Cancel every task, run until all have ended, and close. Spawned tasks end first, in their order."""
        self._cancel(tuple(self._spawned))
        self._cancel(tuple(asyncio.all_tasks(self)))
        self.run_until_complete(self.shutdown_asyncgens())
        self.close()

    def _cancel(self, tasks: "tuple[asyncio.Task[Any], ...]") -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.wait(tasks))

    def _run(self) -> None:
        self.run_forever()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _ended(self, task: "asyncio.Task[None]") -> None:
        del self._spawned[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Stop, and raise this in the caller of `advance_to` or `settle`."""
        self._failure = self._failure or error
        self.stop()

    # -- what BaseEventLoop asks of its subclasses -------------------------------------------------------

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """The call, now and in this thread: it takes no virtual time."""
        result = self.create_future()
        try:
            result.set_result(func(*args))
        except Exception as error:
            result.set_exception(error)
        return result

    def _process_events(self, event_list: list[Any]) -> None:
        """There is no I/O."""

    def _write_to_self(self) -> None:
        """No other thread wakes this loop."""


class _Repeated:
    """A callback at every CHECK_EVERY_S of virtual time, until it is cancelled."""

    def __init__(self, loop: VirtualTimeLoop, callback: Callable[[], object]) -> None:
        self._loop, self._callback = loop, callback
        self._set()

    def cancel(self) -> None:
        self._timer.cancel()

    def _set(self) -> None:
        self._timer = self._loop.call_at(self._loop.now_s + CHECK_EVERY_S, self._fire)

    def _fire(self) -> None:
        self._set()
        self._callback()


def _keep_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, VirtualTimeLoop)
    if (error := context.get("exception")) is not None:
        loop.fail(error)


class VirtualClock:
    """See `Clock`: the time of a virtual loop. Sleeping needs that loop to run."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop

    def now_s(self) -> float:
        return self._loop.now_s

    async def sleep_until(self, at_s: float) -> None:
        if at_s <= self._loop.now_s:
            return
        woken = self._loop.create_future()
        timer = self._loop.call_at(at_s, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


# --- event queue ---------------------------------------------------------------------------------------
# Virtual time: a heap of callbacks ordered by (time, rank, ticket), and a clock that jumps from one to the next.


class Engine:
    """Callbacks of one instant run by rank, and those of one rank in the order in which they were scheduled."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self._tickets = 0
        self._heap: list[tuple[float, tuple[int, str], int, Callable[[], None]]] = []

    def at(self, at_s: float, callback: Callable[[], None], *, rank: tuple[int, str] = (0, "")) -> None:
        """Call back at at_s, or now if that has passed."""
        self._tickets += 1
        heapq.heappush(self._heap, (max(at_s, self.now_s), rank, self._tickets, callback))

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, callback)

    def run(self, until_s: float, done: Callable[[], bool] = lambda: False) -> None:
        """Run until done(), or until_s, or until nothing is scheduled."""
        while self._heap and self._heap[0][0] <= until_s and not done():
            self.now_s, _, _, callback = heapq.heappop(self._heap)
            callback()


# --- policies on virtual time --------------------------------------------------------------------------
# The policies of one pool: their folded states, when they decide, when the first one wakes.

NEVER_S = float("inf")

Evolve = Callable[[Any, LedgerMessage, int], Any]


class PolicyDriver:
    """settle: lets all policies decide; called once for all events of one instant, after them."""

    def __init__(self, engine: Engine, policies: Iterable[Policy[Any]], settle: Callable[[], None]) -> None:
        self._engine, self.policies, self._settle = engine, tuple(policies), settle
        # one state for each way to fold: a baseline may remember more than the pool
        self._folded: dict[Evolve, Any] = {ledger_fold.evolve: PoolState()}
        for policy in self.policies:
            self._folded.setdefault(policy.evolve, policy.start(PoolState()))
        self._is_due, self._wake_at_s = False, NEVER_S

    @property
    def state(self) -> PoolState:
        """The folded ledger."""
        return self._folded[ledger_fold.evolve]

    def fold(self, message: LedgerMessage) -> None:
        """The next message of the ledger."""
        sequence = self.state.sequence + 1
        for evolve, state in self._folded.items():
            self._folded[evolve] = evolve(state, message, sequence)

    def ask(self, policy: Policy[Any], commands: tuple[Command, ...]) -> PlanDecided | None:
        """What a policy decides now; not folded yet. None if nothing."""
        now_s = self._engine.now_s
        events = policy.decide(self._folded[policy.evolve], commands, now_s)
        if not events:
            return None
        return PlanDecided(
            service=policy.service,
            based_on=self.state.sequence,
            now_s=now_s,
            commands=commands,
            events=events,
        )

    def soon(self) -> None:
        """Let the policies decide at this instant."""
        if not self._is_due:
            self._is_due = True
            self._engine.after(0.0, self._decide)

    def _decide(self) -> None:
        self._is_due = False
        self._settle()
        self._sleep()

    def _sleep(self) -> None:
        """Decide again when the first policy wakes."""
        wakes_s = (policy.wake_at_s(self._folded[policy.evolve]) for policy in self.policies)
        wake_at_s = min((at_s for at_s in wakes_s if at_s is not None), default=NEVER_S)
        assert wake_at_s > self._engine.now_s, "a policy wakes now and decides nothing"
        if wake_at_s not in (self._wake_at_s, NEVER_S):
            self._engine.at(wake_at_s, lambda: self._wake(wake_at_s))
        self._wake_at_s = wake_at_s

    def _wake(self, at_s: float) -> None:
        if at_s == self._wake_at_s:
            self.soon()
