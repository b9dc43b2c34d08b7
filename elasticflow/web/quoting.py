"""Quotes: what a job like an earlier one would be promised now, what that costs, and how `eflow submit` names it."""

import shlex
from dataclasses import asdict, replace
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from elasticflow.history.usage_report import Prices, price_of
from elasticflow.sdk.job import InvalidJob
from elasticflow.shared.errors import ElasticFlowError, Retry
from elasticflow.shared.messages.events import DeadlineQuoted
from elasticflow.shared.messages.job_spec import SCRIPT, SCRIPT_SUFFIX, TORCHRUN, JobClass, JobSpec
from elasticflow.shared.state.pool import PoolState
from elasticflow.web.page_values import parts_with_gpus
from elasticflow.web.reading import as_json, known_job, number, page_of

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
