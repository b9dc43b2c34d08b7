"""Asks what announces the end of this machine again and again, and tells each change. It never stops the node."""

import asyncio
from collections.abc import Callable
from typing import Any

from elasticflow.services.executor.decisions.local_events_and_actions import EndNoticed
from elasticflow.services.executor.end_notices.sources import Answer, Source
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.times import moment_in_words

_FIRST_TRIES, _FIRST_PAUSE_S = 3, 1.0  # the network of a machine that has just started may come later
_LAST_PAUSE_S = 30.0


class EndWatcher:
    """until_notice: as the user wrote it."""

    def __init__(self, until_notice: str, source: Source, clock: Clock, log: Any) -> None:
        self._until_notice, self._source, self._clock, self._log = until_notice, source, clock, log
        self._answer: Answer | None = None
        self._since_s = 0.0  # when what this answer says of the end was first read
        self._end_s: float | None = None
        self._problem = ""  # of the last question

    async def check(self) -> None:
        """Read the first answer, before the node joins.

        Raises BadSettings if nobody answers, and if the machine should have ended already.
        """
        for left in reversed(range(_FIRST_TRIES)):
            try:
                await self._ask()
                break
            except OSError as error:
                if not left:
                    raise self._refusal(f"{self._source.absent} ({error})") from error
            except ValueError as error:
                raise self._refusal(f"the first answer cannot be understood: {error}") from error
            await asyncio.sleep(_FIRST_PAUSE_S)
        now_s = self._clock.now_s()
        if self._end_s is not None and self._end_s <= now_s:
            when = moment_in_words(self._end_s, now_s)
            raise self._refusal(f"it says that this machine ended at {when}; start the node once this is taken back")

    async def run(self, tell: Callable[[EndNoticed], None]) -> None:
        """Tell the end as `check` has read it, and each change of it."""
        self._log.info("WatchesForItsEnd", until_notice=self._until_notice, until_s=self._end_s)
        tell(EndNoticed(until_s=self._end_s, at_s=self._clock.now_s()))
        pause_s = self._source.every_s
        while True:
            await asyncio.sleep(pause_s)
            known_s = self._end_s
            try:
                await self._ask()
            except (OSError, ValueError) as error:
                self._note_problem(f"{type(error).__name__}: {error}")
                pause_s = max(min(2.0 * pause_s, _LAST_PAUSE_S), self._source.every_s)
                continue
            self._note_problem("")
            pause_s = self._source.every_s
            if self._end_s != known_s:
                self._log.warning("EndNoticed", until_notice=self._until_notice, until_s=self._end_s)
                tell(EndNoticed(until_s=self._end_s, at_s=self._clock.now_s()))

    async def _ask(self) -> None:
        """Raises OSError and ValueError; what was known before then still counts."""
        answer = await asyncio.to_thread(self._source.ask)
        since_s = answer.since_s
        if since_s is None:
            since_s = self._since_s if self._says_the_same(answer) else self._clock.now_s()
        self._end_s = self._source.end_s(answer, since_s)
        self._answer, self._since_s = answer, since_s

    def _says_the_same(self, answer: Answer) -> bool:
        """Of the end as the answer before, whatever else it says. Raises ValueError."""
        if self._answer is None or answer.texts == self._answer.texts:
            return self._answer is not None
        return self._end_s is not None and self._source.end_s(answer, self._since_s) == self._end_s

    def _note_problem(self, problem: str) -> None:
        """Each one once, until there is none or another one."""
        if problem and problem != self._problem:
            self._log.warning("NoticeUnreadable", until_notice=self._until_notice, problem=problem, until_s=self._end_s)
        elif self._problem and not problem:
            self._log.info("NoticeReadable", until_notice=self._until_notice)
        self._problem = problem

    def _refusal(self, problem: str) -> BadSettings:
        return BadSettings((f"--until-notice {self._until_notice} (EF_UNTIL_NOTICE): {problem}",))
