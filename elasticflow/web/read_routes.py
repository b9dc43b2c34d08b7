"""The routes that read: the pool and its changes, one job, its logs, events, and tenants."""

import asyncio
import contextlib
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from elasticflow.client.client import Client
from elasticflow.client.worker_logs import FileLogs, LogReader, StoredLogs, log_folder
from elasticflow.errors import did_you_mean
from elasticflow.history.event_text import event_rows
from elasticflow.history.usage_report import NoPrice, Prices, cost_of
from elasticflow.shared.errors import NotPermitted, Unavailable
from elasticflow.shared.hidden_characters import escaped
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState
from elasticflow.web.page_values import POLICIES, Known, job_detail, past_update, pool_update, tenant_rows
from elasticflow.web.pool_history import PoolHistory
from elasticflow.web.saved_page import saved_page
from elasticflow.web.sources import Source

# --- event streams ------------------------------------------------------------------------------------
# Server-sent events: the changes of a pool, and the lines of a job's logs.

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


# --- tenant values -------------------------------------------------------------------------------------
# What each tenant was promised, has used since the ledger began, and what that costs: as `eflow report` counts it.


def tenant_values(history: PoolHistory, now_s: float, prices: Prices | None) -> dict[str, Any]:
    """since_s: of the first message. has_costs: whether there are prices. unpriced: used without a price, in words."""
    used = {usage.tenant: usage for usage in history.usage.usage(now_s=now_s)}
    has_types = len(history.state.gpu_types) > 1
    unpriced = set[str]()
    rows = tenant_rows(history.state, now_s, more=used)
    for row in rows:
        usage = used.get(row["tenant"])
        hours = dict(usage.gpu_hours_by_type) if usage else {}
        row |= {"gpu_hours": sum(hours.values()), "gpu_hours_by_type": hours if has_types else {}, "cost": None}
        try:
            row["cost"] = None if prices is None else cost_of(hours, prices)
        except NoPrice as error:
            unpriced.add(str(error))
    return {
        "since_s": history.first_at_s,
        "has_costs": prices is not None,
        "unpriced": "; ".join(sorted(unpriced)),
        "rows": rows,
    }


# --- read routes ---------------------------------------------------------------------------------------

LIVE = "live"
_EVENT_STREAM = "text/event-stream"
_MAX_ROWS = 500


@dataclass(slots=True, kw_only=True)
class Page:
    """What all routes share. sources: by name, LIVE the first; client: None for a page of a file."""

    sources: dict[str, Source]
    csrf_token: str = ""
    client: Client | None = None
    data_dir: Path | None = None
    operator: bool = False
    prices: Prices | None = None
    streams: dict[str, PoolStream] = field(default_factory=dict[str, PoolStream])
    comparing: asyncio.Lock = field(default_factory=asyncio.Lock)  # with another policy: one at a time

    def source(self, request: Request) -> Source:
        name = request.query_params.get("source", LIVE)
        if name not in self.sources:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"no ledger {name!r} is open; open its file again")
        return self.sources[name]

    def connected(self) -> Client:
        if self.client is None:
            raise HTTPException(HTTPStatus.CONFLICT, "this page shows a file, not a live pool")
        return self.client


def page_of(request: Request) -> Page:
    page = request.app.state.page
    assert isinstance(page, Page)
    return page


def as_json(value: Any) -> Response:
    return Response(encoded(value), media_type="application/json")


def number(request: Request, name: str, otherwise: int) -> int:
    """A query parameter that is a number; of milliseconds, a time before the year 5000. Raises HTTPException."""
    text = request.query_params.get(name, "")
    if not text:
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) < 15):
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"{name} must be a number, not {text!r}")
    return int(text)


def policy_of(request: Request) -> tuple[str, int]:
    """Another policy, and the message after which it decides; the key of its comparison. Raises HTTPException."""
    return request.query_params.get("policy", ""), number(request, "from", 0)


async def session(request: Request) -> Response:
    page = page_of(request)
    shown = {
        name: {
            "title": source.title,
            "is_live": source.is_live,
            "first_at_s": source.history.first_at_s,
            "last_at_s": source.history.last_at_s,
            "last_sequence": source.history.state.sequence,
            "incomplete": source.history.unread.in_words(),
        }
        for name, source in page.sources.items()
    }
    tenant = page.client.tenant if page.client else ""
    return as_json(
        {
            "operator": page.operator,
            "tenant": tenant,
            "csrf_token": page.csrf_token,
            "sources": shown,
            "policies": POLICIES,
        }
    )


async def stream(request: Request) -> Response:
    page = page_of(request)
    name = request.query_params.get("source", LIVE)
    of_source = page.streams.setdefault(name, PoolStream(page.source(request)))
    last = request.headers.get("last-event-id", "")
    after = int(last) if last.isascii() and last.isdigit() else 0
    return StreamingResponse(until(request.app.state.ending, of_source.events(after)), media_type=_EVENT_STREAM)


async def state(request: Request) -> Response:
    """The pool after one message of the ledger; only what differs, if the browser has another state of late."""
    source = page_of(request).source(request)
    past, at_s = await _state(request, source)
    state = source.past.known(number(request, "known", 0))
    known = Known(state, number(request, "known_at_ms", 0) / 1e3) if state else None
    return as_json(past_update(source.history, past, at_s, known))


async def saved(request: Request) -> Response:
    """The pool at one time as a file that opens without this server."""
    source = page_of(request).source(request)
    past, at_s = await _state(request, source)
    update = past_update(source.history, past, at_s, None)
    shown = saved_page(
        source.title,
        update,
        incomplete=source.history.unread.in_words(),
        compared=_laid_over(request, source) if "policy" in request.query_params else None,
    )
    name = f'attachment; filename="eflow-message-{past.sequence}.html"'
    return HTMLResponse(shown, headers={"content-disposition": name})


def _laid_over(request: Request, source: Source) -> Any:
    """The comparison that this browser shows. Raises HTTPException if newer ones have replaced it."""
    policy, after = policy_of(request)
    compared = source.comparisons.get((policy, after))
    if compared is None:
        raise HTTPException(HTTPStatus.CONFLICT, f"lay {policy} over again: this server has forgotten its result")
    return json.loads(compared)


async def job(request: Request) -> Response:
    source = page_of(request).source(request)
    past, at_s = await _state(request, source)
    return as_json(job_detail(source.history, past, known_job(request, past), at_s))


async def logs(request: Request) -> Response:
    """Stream the logs from the files of the pool's data folder; without them, from NATS."""
    page = page_of(request)
    source = page.source(request)
    job = known_job(request, source.history.state)
    if page.data_dir is None and page.client is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "a ledger's file has no logs: open the page of its pool")
    reader = LogReader(log_folder(page.data_dir, job), None)
    if reader.has_files or page.client is None:
        logs = FileLogs(reader, job, follow=True)
    else:
        logs = page.client.stored_logs(job)
    lines = log_events(logs, job, lambda: source.history.state)
    return StreamingResponse(until(request.app.state.ending, lines), media_type=_EVENT_STREAM)


async def events(request: Request) -> Response:
    """Rows of the ledger up to a sequence, the newest last; of one job, or of one type, if the request names it."""
    source = page_of(request).source(request)
    end = min(number(request, "before", 1 << 40) - 1, source.history.state.sequence)
    count = min(number(request, "count", 200), _MAX_ROWS)
    job_id, wanted = request.query_params.get("job", ""), request.query_params.get("type", "")
    rows: list[dict[str, Any]] = []
    first = max(0, end - _MAX_ROWS * (10 if job_id or wanted else 1))
    async with contextlib.aclosing(source.entries(first, max(first, end))) as entries:
        async for stored, message in entries:
            rows += (row for row in event_rows(stored, message, job_id) if wanted in ("", row["type"]))
    shown = rows[-count:]
    more_before = shown[0]["sequence"] if len(rows) > count else first + 1
    return as_json({"rows": shown, "before": more_before if more_before > 1 else None})


async def tenants(request: Request) -> Response:
    page = page_of(request)
    source = page.source(request)
    return as_json(tenant_values(source.history, source.now_s(), page.prices))


def known_job(request: Request, past: PoolState) -> Job:
    """The job that the path or the query names. Raises HTTPException."""
    job_id = request.path_params.get("job_id") or request.query_params.get("like", "")
    found = past.job(job_id)
    if found is None:
        unknown = f"there is no job {job_id!r} at this time{did_you_mean(job_id, past.names)}"
        raise HTTPException(HTTPStatus.NOT_FOUND, unknown)
    return found


async def _state(request: Request, source: Source) -> tuple[PoolState, float]:
    """Now, after the message that the request names, or at the millisecond that it names."""
    if "sequence" in request.query_params:
        past = await source.past.at(number(request, "sequence", 0))
        return past, source.history.stored_at_s(past.sequence)
    if "at_ms" in request.query_params:
        at_s = number(request, "at_ms", 0) / 1e3
        return await source.past.at_time(at_s), at_s
    return source.history.state, source.now_s()


READING = [
    Route("/api/session", session),
    Route("/api/stream", stream),
    Route("/api/state", state),
    Route("/api/saved", saved),
    Route("/api/jobs/{job_id}", job),
    Route("/api/jobs/{job_id}/logs", logs),
    Route("/api/events", events),
    Route("/api/tenants", tenants),
]
