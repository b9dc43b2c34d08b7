"""Server-sent events: the changes of a pool, and the lines of a job's logs."""

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import asdict
from typing import Any, cast

from elasticflow.client.worker_logs import FileLogs, StoredLogs
from elasticflow.shared.errors import NotPermitted, Unavailable
from elasticflow.shared.hidden_characters import escaped
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState
from elasticflow.web.page_values import pool_update
from elasticflow.web.sources import Source

_SPACING_S = 0.1  # at least, between two events to one browser
_KEEP_ALIVE_S = 10.0  # a clock event at least so often
_MAX_KEPT_BYTES = 4 << 20  # two updates of MAX_JOBS
_LOG_POLL_S = 0.3
_MAX_LINES = 2_000  # of one event; of more, the newest


# Each way in which JSON in ASCII writes a hidden character, and the backslash, which could be followed by its letters.
_ESCAPE = re.compile(r"\\\\|\\u[0-9a-f]{4}|\\[bf]")


def encoded(value: Any) -> bytes:
    r"""JSON as a browser reads it. A hidden character of a text is escaped once more: the page shows `\u202e`.

    Raises ValueError for a number that is not finite; messages have none.
    """
    text = json.dumps(value, default=_plain, separators=(",", ":"), allow_nan=False)
    return _ESCAPE.sub(_shown, text).encode()


def _shown(found: re.Match[str]) -> str:
    written = found[0]
    character = json.loads(f'"{written}"')
    shown = escaped(character)
    return written if shown == character else json.dumps(shown)[1:-1]


def _plain(value: Any) -> Any:
    """The plain form of a value that JSON does not know: a persistent map, or a dataclass."""
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else asdict(value)


def event(value: Any, *, name: str = "message", id: int | None = None) -> bytes:
    head = f"event: {name}\n" + (f"id: {id}\n" if id is not None else "")
    return head.encode() + b"data: " + encoded(value) + b"\n\n"


class PoolStream:
    """Encodes each update once, however many browsers have seen as much."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._encoded: dict[tuple[int, int], bytes] = {}

    async def events(self, after: int) -> AsyncGenerator[bytes, None]:
        """The pool as of now, then what changes, without end. after: what the browser has; its Last-Event-ID."""
        source = self._source
        told: tuple[object, ...] | None = None
        if after > source.history.state.sequence:
            after = 0  # another ledger, or one that is being read again
        while True:
            sequence, status = source.history.state.sequence, _status(source)
            if told is None or sequence > after:
                yield self._clock()
                yield self._update(after, sequence)
                after = sequence
            if told != status:
                told = status
                names = ("stale_since_s", "reads_up_to", "incomplete")
                yield event(dict(zip(names, status, strict=True)), name="status")
            await asyncio.sleep(_SPACING_S)
            if source.history.state.sequence == after and _status(source) == told:
                try:
                    async with asyncio.timeout(_KEEP_ALIVE_S):
                        await source.changed()
                except TimeoutError:
                    yield self._clock()

    def _clock(self) -> bytes:
        """The time of the source, never from the kept bytes of an update."""
        return event(self._source.now_s(), name="clock")

    def _update(self, after: int, sequence: int) -> bytes:
        """The newest updates are kept: browsers in step get the same bytes. Rows say what holds at any later time."""
        key = (after, sequence)
        if key not in self._encoded:
            source = self._source
            update = pool_update(source.history, source.now_s(), after=after)
            self._encoded[key] = event(update | {"whole": after == 0}, id=sequence)
            while len(self._encoded) > 1 and sum(map(len, self._encoded.values())) > _MAX_KEPT_BYTES:
                del self._encoded[next(iter(self._encoded))]
        return self._encoded[key]


def _status(source: Source) -> tuple[float | None, int, str]:
    """Since when the connection is lost; up to which message the ledger is read, 0 if up to its end; what is unread."""
    reads_up_to = source.last_sequence if source.history.state.sequence < source.last_sequence else 0
    return source.stale_since_s, reads_up_to, source.history.unread.in_words()


async def until(ending: asyncio.Event, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The stream, which has no end of its own, until the event."""
    end = asyncio.ensure_future(ending.wait())
    try:
        while True:
            following = asyncio.ensure_future(anext(stream, None))
            try:
                await asyncio.wait((end, following), return_when=asyncio.FIRST_COMPLETED)
            finally:  # also where the browser has closed the connection
                if not following.done():
                    following.cancel()
                    await asyncio.wait((following,))
            if following.cancelled() or (content := following.result()) is None:
                return
            yield content
    finally:
        end.cancel()
        await stream.aclose()


async def log_events(
    logs: FileLogs | StoredLogs, job: Job, state: Callable[[], PoolState]
) -> AsyncGenerator[bytes, None]:
    """New lines of all workers, until a later job takes the id. Of a flood, the newest lines and the number of the
    others."""
    while not state().has_later_job(job):
        lines: deque[str] = deque(maxlen=_MAX_LINES)
        count = 0
        try:
            async for line in logs.new_lines(state()):
                lines.append(line)
                count += 1
        except (NotPermitted, Unavailable) as error:
            yield event({"lines": [f"eflow: {error}"], "skipped": 0})
            return
        if count:
            yield event({"lines": list(lines), "skipped": count - len(lines)})
        else:
            yield b": alive\n\n"
        await asyncio.sleep(_LOG_POLL_S)
