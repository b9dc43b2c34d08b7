"""Runs the host of `python -m services.X`: settings, logs, bus, metrics, signals, shutdown."""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any

from elasticflow.shared.errors import ElasticFlowError, Retry, Stop
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.nats.client import masked
from elasticflow.shared.runtime.bus.streams import StreamLimits
from elasticflow.shared.runtime.process.clock import Clock, SystemClock
from elasticflow.shared.runtime.process.logs import BackoffLogger, configure_logs, get_log
from elasticflow.shared.runtime.process.metrics import Metrics, serve_metrics
from elasticflow.shared.runtime.process.process_termination import die_with_parent
from elasticflow.shared.runtime.process.settings import Settings
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.replica import open_replica
from elasticflow.shared.runtime.service.service_context import ServiceContext
from elasticflow.shared.state.policy import Policy, State

# --- housekeeping --------------------------------------------------------------------------------------
# What a service does beside its decisions: deletions, uploads, views, notices. None of it can end the service.
#
# A task of it that fails is logged, counted and begun again (docs/adr/0100).

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 300.0


async def keep_up(
    name: str,
    work: Callable[[], Coroutine[Any, Any, None]],
    *,
    log: Any,
    count_failure: Callable[[str], None] = lambda _: None,
) -> None:
    """Run the work, again after each failure, until it returns or is cancelled.

    The pause doubles with each failure, and is the first one again for a work that has run for LAST_RETRY_S.
    """
    retry_s = FIRST_RETRY_S
    while True:
        began_s = time.monotonic()
        try:
            return await work()
        except Exception as error:  # of any kind: what jobs and users do reaches this work
            if time.monotonic() - began_s > LAST_RETRY_S:
                retry_s = FIRST_RETRY_S
            count_failure(name)
            log.exception("HousekeepingFailed", task=name, error=f"{type(error).__name__}: {error}", retry_s=retry_s)
        await asyncio.sleep(retry_s)
        retry_s = min(2.0 * retry_s, LAST_RETRY_S)


CONNECT_RETRY_S = 1.0
_USAGE = (
    "Serves one pool, until SIGTERM or Ctrl-C. Environment variables say how: NATS_URL, EF_POOL, EF_DATA_DIR, "
    "EF_METRICS_PORT, EF_LOG_FORMAT and others, which the README lists. `eflow up` starts all five services."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What a service gets to work with."""

    settings: Settings
    bus: NatsBus
    clock: Clock
    log: Any
    metrics: Metrics

    async def keep_up(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Housekeeping: it may fail, and does not end the service."""

        def count_failure(name: str) -> None:
            self.metrics.housekeeping_failures.add(name, 1)

        await keep_up(name, work, log=self.log, count_failure=count_failure)


def run_service(service: str, configured: Callable[[Settings], Callable[[Process], Coroutine[Any, Any, None]]]) -> None:
    """Run a service until SIGTERM or SIGINT.

    configured: makes the service; raises BadSettings, before any wait, if the service's own settings are wrong.
    Exits 2 if a restart cannot help (wrong settings or credentials, say), else 1.
    """
    ArgumentParser(prog=f"python -m elasticflow.services.{service}", description=_USAGE).parse_args()
    try:
        settings = Settings.from_environment()
        shell = configured(settings)
        configure_logs(settings.log_format, level=settings.log_level)
        if os.environ.get("EF_DIE_WITH_PARENT"):
            die_with_parent()
        asyncio.run(_run(service, settings, shell))
    except (ElasticFlowError, BaseExceptionGroup) as error:
        expected = _expected(error)
        if expected is None:
            raise
        print(f"{service}: {expected}", file=sys.stderr)
        sys.exit(2 if isinstance(expected, Stop) else 1)


def _shown(settings: Settings) -> dict[str, Any]:
    hidden = {"nats_url": masked(settings.nats_url)}
    shown = {name: str(getattr(settings, name)) for name in ("data_dir", "nats_access")}
    return asdict(settings) | hidden | shown


def _expected(error: BaseException) -> ElasticFlowError | None:
    """The expected failure, also in a group; None if any other exception is in it too."""
    if isinstance(error, BaseExceptionGroup):
        inner = [_expected(each) for each in error.exceptions]
        return None if None in inner else inner[0]
    return error if isinstance(error, ElasticFlowError) else None


async def _run(service: str, settings: Settings, shell: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
    log = get_log(service, pool=settings.pool, instance=settings.instance)
    log.info("service starts", **_shown(settings))
    metrics = Metrics(service, settings.pool)
    bus = await _connected(service, settings, log, metrics)
    process = Process(settings=settings, bus=bus, clock=SystemClock(), log=log, metrics=metrics)
    running = asyncio.ensure_future(shell(process))
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        log.info("service stops")
    finally:
        await bus.close()


async def _connected(service: str, settings: Settings, log: Any, metrics: Metrics) -> NatsBus:
    """The bus, once it is reachable: a service may start before NATS does."""

    def on_state(state: str) -> None:
        metrics.connected.set(state in ("connected", "reconnected"))
        write = log.warning if state == "disconnected" else log.info
        write("nats", state=state, url=masked(settings.nats_url))

    bus: NatsBus | None = None
    backoff = BackoffLogger(log, "nats is not ready")
    while True:
        try:
            bus = bus or await connect_nats(
                settings.nats_url,
                name=f"ef-{service}-{settings.instance}",
                limits=StreamLimits(replicas=settings.replicas),
                access=settings.nats_access,
                on_state=on_state,
            )
            await bus.ensure_pool(settings.pool)
        except Retry as error:
            backoff.goes_on(error)
            await asyncio.sleep(CONNECT_RETRY_S)
            continue
        backoff.is_over()
        metrics.connected.set(1)
        return bus


async def host_policy(
    process: Process,
    policy: Policy[State],
    *,
    leads_by_lease: bool = False,
    act: Callable[[Any], None] | None = None,
    prepare: Callable[[], None] | None = None,
    beside: Callable[[Host[State]], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Host a policy until cancelled, with its two HTTP pages, and `beside` it the other tasks of the service.

    prepare: slow work that must be done before the first decision.
    leads_by_lease: one of several replicas decides and the others stand by (see `open_replica`).
    """
    settings = process.settings
    context = ServiceContext(
        bus=process.bus,
        pool=settings.pool,
        clock=process.clock,
        instance=settings.instance,
        log=process.log,
        metrics=process.metrics,
    )
    replica = await open_replica(context, policy, leads_by_lease=leads_by_lease, act=act)

    def unwell() -> str | None:
        return replica.host.unwell() if process.bus.is_connected else "not connected to NATS"

    pages = serve_metrics(process.metrics, unwell, host=settings.metrics_host, port=settings.metrics_port)
    process.log.info("metrics served", port=pages.port)
    try:
        if prepare is not None:
            process.log.info("prepares", what=prepare.__name__)
            await _in_daemon_thread(prepare)
            process.log.info("prepared", what=prepare.__name__)
        keep_what_is_loaded()
        await replica.run(beside)
    finally:
        pages.close()


def keep_what_is_loaded() -> None:
    """Exclude loaded objects from garbage collections: each would scan a million objects of libraries, for 0.1 s."""
    gc.collect()
    gc.freeze()


def _in_daemon_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Run it in another thread. A service that stops meanwhile does not wait for it, unlike for asyncio's threads."""
    done = Future[None]()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name=work.__name__, daemon=True).start()
    return asyncio.wrap_future(done)
