"""The routes that write: commands of the viewer's tenant, with `--operator` only; and the opening of an export."""

import io
import json
import math
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import Any, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from elasticflow.client.client import Client
from elasticflow.client.command_requests import fresh_job_id
from elasticflow.errors import InvalidJob, Undecided
from elasticflow.history.usage_report import Prices, price_of
from elasticflow.shared.errors import ElasticFlowError, Retry
from elasticflow.shared.messages.events import (
    AmendRejected,
    CancelRejected,
    CheckpointFailed,
    CheckpointRejected,
    DeadlineQuoted,
    JobRejected,
    QuoteRejected,
)
from elasticflow.shared.messages.export import BadExport, read_export
from elasticflow.shared.messages.job_spec import SCRIPT, SCRIPT_SUFFIX, TORCHRUN, JobClass, JobSpec
from elasticflow.shared.runtime.service.ledger_encoding import read_message
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState
from elasticflow.web.page_values import parts_with_gpus
from elasticflow.web.read_routes import Page, as_json, known_job, number, page_of
from elasticflow.web.sources import RecordedSource

# --- quoting -------------------------------------------------------------------------------------------
# Quotes: what a job like an earlier one would be promised now, what that costs, and how `eflow submit` names it.

_ANY_DEADLINE_S = 86_400.0  # a quote ignores it
_HOUR_S = 3_600.0


async def quote(request: Request) -> Response:
    """The earliest deadline of a job like an earlier one, with other numbers. 503: ask again."""
    page = page_of(request)
    client, past = page.connected(), page.source(request).history.state
    spec = spec_like(request, past)
    try:
        quoted = await client.quote(spec)
    except InvalidJob as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
    except Retry as error:
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from None
    except ElasticFlowError as error:
        raise HTTPException(HTTPStatus.CONFLICT, str(error)) from None
    return as_json(quote_values(quoted, spec, past, page.prices))


def quote_values(quoted: DeadlineQuoted, spec: JobSpec, past: PoolState, prices: Prices | None) -> dict[str, Any]:
    """price: of a GPU-hour, and cost, in dollars; None without a price of this type, absent without any prices."""
    values: dict[str, Any] = asdict(quoted) | {"promised": parts_with_gpus(quoted.schedule), **submission_words(spec)}
    del values["schedule"]
    if prices is not None:
        gpu_type = quoted.gpu_type or next(iter(past.gpu_types), "")
        price = price_of(prices, gpu_type)
        needs_s = quoted.gpu_seconds
        cost = None if price is None or needs_s is None else needs_s / _HOUR_S * price
        values |= {"price": price, "cost": cost, "priced_type": gpu_type}
    return values


def submission_words(spec: JobSpec) -> dict[str, str]:
    """What `eflow submit` gets as its target and its arguments, quoted for a shell. A file is relative to the folder
    that it was packaged from."""
    module, _, entry = spec.training_function.partition(":")
    if not spec.code_digest:
        target = [spec.training_function]
    else:
        path = module if module.endswith(SCRIPT_SUFFIX) else f"{module.replace('.', '/')}{SCRIPT_SUFFIX}"
        file = str(PurePosixPath(spec.import_folder, path))
        target = {SCRIPT: [file], TORCHRUN: [file, "--torchrun"]}.get(entry, [f"{file}:{entry}"])
    arguments = spec.arguments if entry in (SCRIPT, TORCHRUN) else ()
    return {"target": shlex.join(target), "arguments": shlex.join(arguments)}


def spec_like(request: Request, past: PoolState) -> JobSpec:
    """The specification of an earlier job, with the request's iterations and batch."""
    like = known_job(request, past)
    if like.spec is None:
        raise HTTPException(HTTPStatus.CONFLICT, f"the specification of {like.job_id} is not known")
    spec = like.submitted_spec or like.spec
    return replace(
        spec,
        max_iterations=number(request, "iterations", spec.max_iterations),
        global_batch_size=number(request, "batch", spec.global_batch_size),
        job_class=JobClass.SLO,
        deadline_s=None,
        deadline_in_s=float(number(request, "deadline_in_s", int(_ANY_DEADLINE_S))),
    )


QUOTING = [Route("/api/quote", quote)]


# --- command routes ------------------------------------------------------------------------------------

MAX_EXPORT_BYTES = 256 << 20
EXPORT = "export"  # the source that a browser has opened
_REJECTIONS = (AmendRejected, CancelRejected, CheckpointFailed, CheckpointRejected, JobRejected, QuoteRejected)
_MAX_BODY_BYTES = 4_096
_RESERVE_S = 300.0

Command = Callable[[Client, Job, Mapping[str, Any]], Awaitable[Any]]


async def _cancel(client: Client, job: Job, wanted: Mapping[str, Any]) -> Any:
    return await client.cancel(job.job_id, reason="by its operator, in the browser")


async def _checkpoint(client: Client, job: Job, wanted: Mapping[str, Any]) -> Any:
    return await client.checkpoint(job.job_id)


async def _amend(client: Client, job: Job, wanted: Mapping[str, Any]) -> Any:
    return await client.amend(
        job.job_id,
        within=_positive(wanted, "deadline_in_s"),
        max_iterations=_whole(_positive(wanted, "max_iterations")),
    )


async def _take_offer(client: Client, job: Job, wanted: Mapping[str, Any]) -> Any:
    """Submit the rejected job again, under a new id, with the numbers of one of its offers."""
    index = wanted.get("offer")
    if job.spec is None or not isinstance(index, int) or not 0 <= index < len(job.offers):
        raise HTTPException(HTTPStatus.CONFLICT, f"{job.job_id} has no such offer")
    if job.tenant != client.tenant:  # its code and its secrets are those of its tenant
        raise HTTPException(HTTPStatus.CONFLICT, f"only tenant {job.tenant} can take an offer of {job.job_id}")
    offer = job.offers[index]
    spec = replace(
        job.submitted_spec or job.spec,
        max_iterations=offer.max_iterations,
        global_batch_size=offer.global_batch_size,
        deadline_s=None,
        deadline_in_s=float(math.ceil(offer.deadline_s - job.decided_at_s)),
    )
    return await client.submit(spec, job_id=fresh_job_id(spec))


_COMMANDS: dict[str, Command] = {
    "cancel": _cancel,
    "checkpoint": _checkpoint,
    "amend": _amend,
    "take-offer": _take_offer,
}


async def command(request: Request) -> Response:
    """One command on one job. The answer is admission's, also if it rejects the command."""
    page = _operator_page(request)
    send = _COMMANDS.get(request.path_params["command"])
    if send is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"no command {request.path_params['command']!r}")
    job = known_job(request, page.source(request).history.state)
    return await _answer(send(page.connected(), job, await _body(request)))


async def reserve(request: Request) -> Response:
    """Reserve what a quote needs for five minutes. The query is that of a quote."""
    page = _operator_page(request)
    spec = spec_like(request, page.source(request).history.state)
    return await _answer(page.connected().reserve(spec, duration=_RESERVE_S))


async def open_export(request: Request) -> Response:
    """Show an exported ledger beside the live one; it replaces the one that was opened before."""
    page = page_of(request)
    too_large = f"the file is larger than {MAX_EXPORT_BYTES >> 20} MiB; open it with `eflow ui FILE`"
    data = await _received(request, MAX_EXPORT_BYTES, too_large)
    try:
        records = read_export(io.BytesIO(data))
    except BadExport as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"the file cannot be replayed: {error}") from None
    source = RecordedSource("an exported ledger", tuple((record, read_message(record)) for record in records))
    await source.fold_all()
    page.sources[EXPORT] = source
    page.streams.pop(EXPORT, None)
    return as_json({"source": EXPORT, "last_sequence": source.last_sequence})


async def _answer(asked: Awaitable[Any]) -> Response:
    try:
        reply = await asked
    except InvalidJob as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
    except (Retry, Undecided) as error:
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from None
    except ElasticFlowError as error:
        raise HTTPException(HTTPStatus.CONFLICT, str(error)) from None
    fields = asdict(reply)
    text = fields.get("explanation", "")
    shown = {name: fields[name] for name in ("job_id", "deadline_s", "until_s", "gpu_seconds") if name in fields}
    return as_json(
        {"accepted": not isinstance(reply, _REJECTIONS), "type": type(reply).__name__, "text": text, **shown}
    )


def _operator_page(request: Request) -> Page:
    page = page_of(request)
    if not page.operator:
        raise HTTPException(HTTPStatus.FORBIDDEN, "this page only reads; `eflow ui --operator` makes one that writes")
    return page


async def _body(request: Request) -> Mapping[str, Any]:
    data = await _received(request, _MAX_BODY_BYTES, "the request is too large")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the request is not JSON") from None
    if not isinstance(body, dict):
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the request must be a JSON object")
    return cast("dict[str, Any]", body)


async def _received(request: Request, max_bytes: int, too_large: str) -> bytearray:
    """All that is sent, whatever length it names. Raises HTTPException."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > max_bytes:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, too_large)
    return data


def _positive(wanted: Mapping[str, Any], name: str) -> float | None:
    """A number of the request; None if it names none. Raises HTTPException."""
    value = wanted.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"{name} must be a positive number, not {value!r}")
    return float(value)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


WRITING = [
    Route("/api/jobs/{job_id}/{command}", command, methods=["POST"]),
    Route("/api/quote", reserve, methods=["POST"]),
    Route("/api/export", open_export, methods=["POST"]),
]
