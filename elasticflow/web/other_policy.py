"""Another policy on the same ledger: how its jobs would have ended. As `eflow replay --policy`, beside the server.

The client has no policies: the simulator compares, as a process of its own, so that viewers are served meanwhile.
"""

import asyncio
import os
import tempfile
from collections.abc import Coroutine
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from elasticflow.client.ledger import write_entries
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.extras import require_extra
from elasticflow.shared.runtime.process.run_module import module_command
from elasticflow.web.page_values import POLICIES
from elasticflow.web.read_routes import page_of, policy_of
from elasticflow.web.sources import Source

MAX_S = 120.0  # of one comparison
_MAX_KEPT = 8  # comparisons of a ledger, for browsers that save one
_CHECK_S = 0.2  # between two looks whether the browser still waits


async def other_policy(request: Request) -> Response:
    """The comparison, in JSON. One at a time: each takes a core."""
    page = page_of(request)
    source, (policy, after) = page.source(request), policy_of(request)
    if policy not in POLICIES:
        raise _refused(f"policy {policy!r} is none of {', '.join(POLICIES)}")
    try:
        require_extra("server", "another policy")
        async with page.comparing:
            compared = await _unless_gone(request, _compared(source, policy, after))
        if compared:
            source.comparisons[policy, after] = compared
            while len(source.comparisons) > _MAX_KEPT:
                del source.comparisons[next(iter(source.comparisons))]
        return Response(compared, media_type="application/json")
    except TimeoutError:
        advice = f"`eflow replay --policy {policy}` has no limit"
        raise HTTPException(HTTPStatus.GATEWAY_TIMEOUT, f"no result after {MAX_S:g} s; {advice}") from None
    except ElasticFlowError as error:
        raise HTTPException(HTTPStatus.CONFLICT, str(error)) from None


async def _unless_gone(request: Request, comparison: Coroutine[Any, Any, bytes]) -> bytes:
    """Ends the comparison if its browser no longer waits for it."""
    task = asyncio.ensure_future(comparison)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=_CHECK_S)
            if await request.is_disconnected():
                return b""
        return await task
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def _compared(source: Source, policy: str, after: int) -> bytes:
    with tempfile.TemporaryDirectory(prefix="eflow-") as folder:
        file = Path(folder) / "page.ledger"
        with file.open("wb") as out:
            await write_entries(source.entries(0, source.history.state.sequence), out)
        return await replayed(str(file), "--policy", policy, "--from", str(after), "--json")


async def replayed(*arguments: str) -> bytes:
    """What the simulator prints. Raises HTTPException with its error, TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        *module_command("elasticflow.simulator", "replay", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "EF_CALLED_AS": "eflow"},
    )
    try:
        async with asyncio.timeout(MAX_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        lines = err.decode(errors="replace").strip().splitlines()
        raise _refused(lines[-1].removeprefix("eflow: ") if lines else "the simulator ended without a result")
    return out


def _refused(why: str) -> HTTPException:
    return HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, why)


COMPARING = [Route("/api/other-policy", other_policy, methods=["POST"])]
