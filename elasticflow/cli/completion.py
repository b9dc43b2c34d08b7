"""Job ids for the shell's completion. Without an answer of the pool there are none, and no message."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer

from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint, find_endpoint
from elasticflow.history.pool_views import activity
from elasticflow.shared.state.pool import PoolState

TIMEOUT_S = 1.0  # a user waits for it with a finger on the Tab key

Word = tuple[str, str]  # and what it is, in a word


def live_jobs(context: typer.Context, incomplete: str) -> list[Word]:
    return _matching(context, incomplete, _live_jobs)


def jobs(context: typer.Context, incomplete: str) -> list[Word]:
    """Live ones first."""
    return _matching(context, incomplete, lambda state: [*_live_jobs(state), *_ended_jobs(state)])


def live_jobs_and_loads(context: typer.Context, incomplete: str) -> list[Word]:
    return _matching(context, incomplete, lambda state: [*_live_jobs(state), *_loads(state, live=True)])


def jobs_and_loads(context: typer.Context, incomplete: str) -> list[Word]:
    return _matching(
        context, incomplete, lambda state: [*_live_jobs(state), *_ended_jobs(state), *_loads(state, live=False)]
    )


def loads(context: typer.Context, incomplete: str) -> list[Word]:
    return _matching(context, incomplete, lambda state: _loads(state, live=False))


def nodes(context: typer.Context, incomplete: str) -> list[Word]:
    return _matching(context, incomplete, _nodes)


def _matching(context: typer.Context, incomplete: str, words_of: Callable[[PoolState], Iterable[Word]]) -> list[Word]:
    state = _state(context.params)
    return [] if state is None else [word for word in words_of(state) if word[0].startswith(incomplete)]


def _state(where: dict[str, Any]) -> PoolState | None:
    """The pool that the options typed so far name; None if it does not answer in time."""
    data_dir = where.get("data_dir")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
        try:
            endpoint = find_endpoint(
                nats_url=where.get("nats_url") or "",
                pool=where.get("pool") or "",
                data_dir=Path(data_dir) if data_dir else None,
            )
            return asyncio.run(_ask(endpoint))
        except Exception:  # whatever it is, the user has only pressed Tab
            return None


async def _ask(endpoint: Endpoint) -> PoolState:
    # a connection that is given up has tasks whose errors asyncio would print later
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with asyncio.timeout(TIMEOUT_S), Client.connect(endpoint) as client:
        return await client.state()


def _live_jobs(state: PoolState) -> list[Word]:
    return [(name, activity(job)) for name, job in sorted(state.live_jobs.items())]


def _ended_jobs(state: PoolState) -> list[Word]:
    return [(name, activity(job)) for name, job in sorted(state.ended_jobs.items())]


def _loads(state: PoolState, *, live: bool) -> list[Word]:
    return [(name, load.phase.value) for name, load in sorted(state.loads.items()) if load.live or not live]


def _nodes(state: PoolState) -> list[Word]:
    return [(name, node.gpu_type or node.device) for name, node in sorted(state.nodes.items()) if node.alive]
