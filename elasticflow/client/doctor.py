"""What is wrong with a pool and with this machine, each with what to do. Nothing is changed."""

import asyncio
import json
import os
import re
import shutil
import ssl
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from elasticflow.client.ledger import LedgerView
from elasticflow.client.pool_endpoint import DEFAULT_TENANT, Endpoint
from elasticflow.client.tenant_view import TenantView
from elasticflow.shared.errors import ElasticFlowError, NotPermitted, names_in_short
from elasticflow.shared.extras import require_one_version, torch_problem
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.streams import StreamLimits
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.process.files import readable_by_others
from elasticflow.shared.runtime.process.folder_tree import jobs_with_files
from elasticflow.shared.runtime.process.isolation.machine_check import namespaces_problem
from elasticflow.shared.runtime.process.isolation.system_calls import NO_FILTER, filter_problem
from elasticflow.shared.runtime.process.nats_access import NatsAccess
from elasticflow.shared.runtime.process.secret_sealing import FILE_NAME, VARIABLE, workers_secret_file
from elasticflow.shared.runtime.service.decision_problems import (
    ClockCheck,
    chain_problem,
    clock_problem,
    plan_problem,
    version_problem,
)
from elasticflow.shared.runtime.service.ledger_bookmark import older_ledger, unknown_jobs_problem
from elasticflow.shared.state.ledger_chain import LedgerChain
from elasticflow.shared.state.pool import NodeState, PoolState

# --- curve check ---------------------------------------------------------------------------------------
# Whether each curve of a pool's configuration belongs to a GPU type of its nodes, each doubt with what to do.


def curve_problems(state: PoolState) -> Iterable[str]:
    """A curve that names no type counts for the first type. With several types, that may not be what was meant."""
    types = state.gpu_types
    for key in sorted(state.config.curves):
        _, _, gpu_type = key.partition("@")
        if not gpu_type and len(types) > 1:
            named = " or ".join(f"{key}@{each}" for each in types)
            yield f"the curve {key} of the configuration names no GPU type and counts for {types[0]}: name it {named}"
        elif gpu_type and types and gpu_type not in types:
            yield f"the curve {key} of the configuration is of no GPU type of this pool, which has {', '.join(types)}"


# --- Whether the workers of all nodes know each other by one secret (docs/adr/0070) --------------------

_SHOWN_NODES = 5


def workers_problems(nodes: Iterable[NodeState]) -> Iterable[str]:
    """What is wrong and what to do. Older nodes, and secrets that may be guessed, have no digest to compare."""
    by_digest = alive_by(lambda node: node.workers_secret, nodes)
    if without := by_digest.pop("none", None):
        others = " and do not meet those of other nodes" if by_digest else ""
        yield (
            f"workers on {named(without)} trust each connection{others}: put {FILE_NAME} into the data folder or "
            f"beside the key there, or set {VARIABLE}; `eflow keys workers` makes it"
        )
    if len(by_digest) > 1:
        groups = "; ".join(sorted(map(named, by_digest.values())))
        yield f"nodes have different secrets in {VARIABLE}, so no job trains on several of them: {groups}: copy one"


def alive_by(value_of: Callable[[NodeState], str], nodes: Iterable[NodeState]) -> dict[str, list[str]]:
    """The ids of living nodes by what they say; those that say nothing are left out."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        if node.alive and (value := value_of(node)):
            found.setdefault(value, []).append(node.node_id)
    return found


def named(node_ids: Sequence[str]) -> str:
    return names_in_short(sorted(node_ids), _SHOWN_NODES)


# --- isolation check -----------------------------------------------------------------------------------
# Whether jobs are separated from their executor, as the nodes themselves have reported.


def reports_isolation(nodes: Iterable[NodeState]) -> bool:
    return bool(alive_by(lambda node: node.isolation, nodes))


def isolation_problems(nodes: Iterable[NodeState]) -> Iterable[str]:
    """What is wrong and what to do. That nodes without isolation run as root is known of this machine only."""
    nodes = tuple(nodes)
    by_kind = alive_by(lambda node: node.isolation, nodes)
    if (without := by_kind.get("none")) and os.geteuid() == 0:
        yield (
            f"this is the user root, and jobs on {named(without)} run as the user of their executor: "
            "set EF_ISOLATION=auto for `eflow up` and `eflow node`"
        )
    if limited := by_kind.get("limits"):
        yield (
            f"jobs on {named(limited)} see the processes and files of their executor's user; `eflow nodes` says why: "
            "permit user namespaces and mounts, and set EF_ISOLATION=required"
        )
    by_filter = alive_by(lambda node: next((said for said in node.unenforced if said.startswith(NO_FILTER)), ""), nodes)
    for sentence, node_ids in by_filter.items():
        yield f"{named(node_ids)}: {sentence}; install it, by `apt-get install libseccomp2` on Debian"


# --- data folder check ---------------------------------------------------------------------------------
# Whether all nodes share one data folder, in which jobs find their checkpoints and files on each node.


def data_folder_problems(nodes: Iterable[NodeState]) -> Iterable[str]:
    """What is wrong and what to do. Older nodes, and storage without hard links, have no name to compare."""
    by_folder = alive_by(lambda node: node.data_folder, nodes)
    if len(by_folder) > 1:
        groups = "; ".join(sorted(map(named, by_folder.values())))
        yield (
            f"nodes do not share their data folder: {groups}: a job that moves from one to another finds neither its "
            "checkpoints nor its files there; start all nodes with --data-dir on the same storage"
        )


# --- certificate times ---------------------------------------------------------------------------------
# Until when the certificates of a PEM file are valid. The ssl module tells it of authorities only.

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x17, 0x18, 0xA0  # tags of ASN.1
_FIELDS_BEFORE_VALIDITY = 3  # serial number, signature algorithm, issuer


def ends_of_validity(file: Path) -> list[datetime]:
    """The ends of validity, in the order of the certificates. Raises OSError, ValueError."""
    return [_end_of_validity(ssl.PEM_cert_to_DER_cert(pem.decode())) for pem in _PEM.findall(file.read_bytes())]


def _end_of_validity(certificate: bytes) -> datetime:
    """RFC 5280, section 4.1. Raises ValueError."""
    try:
        ((_, signed),) = _values(certificate)
        (_, body), *_ = _values(signed)
        fields = [value for tag, value in _values(body) if tag != _VERSION]
        _, (tag, end) = _values(fields[_FIELDS_BEFORE_VALIDITY])
    except (IndexError, ValueError):
        raise ValueError("not a certificate") from None
    text = end.decode("ascii")
    if tag == _UTC_TIME:  # years 1950 to 2049
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The tag and the content of each value in DER. Raises IndexError, ValueError."""
    position = 0
    while position < len(data):
        tag, length = data[position], data[position + 1]
        position += 2
        if length & 0x80:
            num_bytes = length & 0x7F
            length, position = int.from_bytes(data[position : position + num_bytes]), position + num_bytes
        if position + length > len(data):
            raise ValueError("cut")
        yield tag, data[position : position + length]
        position += length


# --- doctor --------------------------------------------------------------------------------------------

LEAST_FREE_BYTES = 1 << 30
EXPIRES_SOON_S = 14 * 86_400.0
_SYNC = "sync_interval: always"
_HTTP_TIMEOUT_S = 5.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_OPERATORS = "streams, clock, plan and executors: use the key of an operator in EF_NATS_CREDS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. problem: what is wrong and what to do; "" if nothing is. unknown: why it is missing."""

    check: str
    problem: str = ""
    unknown: str = ""


Check = tuple[str, Callable[[], Awaitable[Iterable[Any]]]]


async def examine(
    endpoint: Endpoint, *, replicas: int, clock: Clock, environment: Mapping[str, str], monitor_urls: Sequence[str] = ()
) -> tuple[Finding, ...]:
    """replicas: that each stream should have. monitor_urls: of the NATS servers' HTTP pages.

    Checks of the pool need a connection; without one its error is found. With the key of a tenant only what that
    tenant sees is checked: no stream, no plan, no executor.
    """
    access = NatsAccess.from_environment(environment)
    findings = [
        *_findings("credentials", (*access.problems(), *_secret_problems(endpoint, environment))),
        *_findings("TLS", _encryption_problems(endpoint, access)),
        *_findings("certificates", await asyncio.to_thread(lambda: tuple(_certificate_problems(access, clock)))),
        *_findings("tenants", _token_problems(endpoint, access)),
        *_findings("disk", _disk_problems(endpoint.data_dir or Path.cwd())),
        *_findings("versions", _version_problems()),
        *await asyncio.to_thread(_sync_findings, endpoint, monitor_urls),
    ]
    try:
        limits = StreamLimits(replicas=replicas)
        bus = await connect_nats(endpoint.nats_url, name="eflow-doctor", access=access, limits=limits)
    except ElasticFlowError as error:
        isolation = await asyncio.to_thread(lambda: tuple(_isolation_problems(environment, access)))
        return (*findings, *_findings("isolation", isolation), Finding(check="connection", problem=str(error)))
    try:
        findings.append(Finding(check="connection"))
        if await _is_a_tenants(bus, endpoint.pool):
            view = TenantView(bus, endpoint.pool, environment.get("EF_TENANT", "") or DEFAULT_TENANT)
            of_pool, not_checked = _checks_by_view(bus, view, clock), (Finding(check="others", unknown=_OPERATORS),)
        else:
            by_environment = partial(_isolation_problems, environment, access)
            of_pool, not_checked = _checks_by_ledger(bus, endpoint, clock, by_environment), ()
        return (*findings, *[each async for each in _results(of_pool)], *not_checked)
    finally:
        await bus.close()


async def _is_a_tenants(bus: NatsBus, pool: str) -> bool:
    """Whether the key of this connection is one of a tenant: it may not ask for the end of the ledger."""
    try:
        await bus.pool_exists(pool)
    except NotPermitted:
        return True
    except ElasticFlowError:
        return False  # each check finds it
    return False


def _checks_by_view(bus: NatsBus, view: TenantView, clock: Clock) -> tuple[Check, ...]:
    async def server() -> Iterable[str]:
        return bus.server_problems()

    async def of_view() -> Iterable[str]:
        await view.state()
        return view.notes(clock.now_s())

    async def curves() -> Iterable[str]:
        return curve_problems(await view.state())

    async def workers() -> Iterable[str]:
        return _node_problems(await view.state())

    return ("server", server), ("view", of_view), ("curves", curves), ("workers", workers)


def _checks_by_ledger(
    bus: NatsBus, endpoint: Endpoint, clock: Clock, isolation_here: Callable[[], Iterable[str]]
) -> tuple[Check, ...]:
    """isolation_here: problems of an executor with this environment, which counts if no node says what it does."""
    pool, data_dir = endpoint.pool, endpoint.data_dir
    clock_check, ledger = ClockCheck(bus, pool, clock), LedgerView(bus, pool)
    reading: asyncio.Future[tuple[PoolState, LedgerChain]] | None = None

    async def state_and_chain() -> tuple[PoolState, LedgerChain]:
        """Read once: a ledger that cannot be read says so after seconds of silence."""
        nonlocal reading
        reading = reading or asyncio.ensure_future(ledger.state_and_chain())
        return await reading

    async def pool_state() -> PoolState:
        return (await state_and_chain())[0]

    async def isolation() -> Iterable[str]:
        nodes = (await pool_state()).nodes.values()
        if reports_isolation(nodes):
            return tuple(isolation_problems(nodes))
        return await asyncio.to_thread(lambda: tuple(isolation_here()))

    async def streams() -> Iterable[str]:
        if problems := await bus.problems(pool):
            return problems
        loss = await ledger.loss() or await ledger.unreadable()
        older = await older_ledger(bus, pool, data_dir) if data_dir is not None else None
        return [str(problem) for problem in (loss, older) if problem is not None]

    async def of_state() -> Iterable[str | None]:
        await clock_check.ask()
        state, chain = await state_and_chain()
        of_clock = clock_problem(clock_check, state.config.deadline_slack_s)
        return of_clock, version_problem(state), plan_problem(state), chain_problem(chain, state)

    async def files() -> Iterable[str | None]:
        if data_dir is None:
            return ()
        with_files = await asyncio.to_thread(jobs_with_files, data_dir)
        return (unknown_jobs_problem(await pool_state(), data_dir, with_files),)

    async def curves() -> Iterable[str]:
        return curve_problems(await pool_state())

    async def workers() -> Iterable[str]:
        return _node_problems(await pool_state())

    return (
        ("isolation", isolation),
        ("streams", streams),
        ("clock and plan", of_state),
        ("files", files),
        ("curves", curves),
        ("workers", workers),
    )


def _node_problems(state: PoolState) -> Iterable[str]:
    return (*workers_problems(state.nodes.values()), *data_folder_problems(state.nodes.values()))


async def _results(checks: Iterable[Check]) -> AsyncIterator[Finding]:
    for name, check in checks:
        try:
            problems = await check()
        except ElasticFlowError as error:
            problems = (str(error),)
        for finding in _findings(name, problems):
            yield finding


def _findings(check: str, problems: Iterable[str | None]) -> tuple[Finding, ...]:
    found = tuple(Finding(check=check, problem=problem) for problem in problems if problem)
    return found or (Finding(check=check),)


def _secret_problems(endpoint: Endpoint, environment: Mapping[str, str]) -> Iterable[str]:
    """Problems of the files that `eflow up` has written, and of the secret of an executor with this environment."""
    files = {file} if (file := workers_secret_file(environment)) else set[Path]()
    if endpoint.data_dir is not None:
        files |= {endpoint.data_dir / name for name in ("nats/token", "run.json", FILE_NAME)}
    for file in sorted(files):
        if (problem := readable_by_others(file)) is not None:
            yield f"{file}: {problem}"


def _encryption_problems(endpoint: Endpoint, access: NatsAccess) -> Iterable[str]:
    if access.ca is None and (hosts := _other_hosts(endpoint)):
        yield f"messages to {', '.join(hosts)} are not encrypted: set up TLS in NATS, and EF_NATS_CA here"


def _certificate_problems(access: NatsAccess, clock: Clock) -> Iterable[str]:
    """Certificates that expire soon. Of the authority's file the last end counts, since it may hold the next one.

    Of the client's file its own certificate counts.
    """
    used: tuple[tuple[str, Path | None, Callable[[list[datetime]], datetime]], ...] = (
        ("EF_NATS_CA", access.ca, max),
        ("EF_NATS_CERT", access.certificate, lambda ends: ends[0]),
    )
    for name, file, of in used:
        try:
            ends = ends_of_validity(file) if file is not None else []
        except (OSError, ValueError):  # `NatsAccess.problems` says what is wrong with it
            continue
        if ends and of(ends).timestamp() - clock.now_s() < EXPIRES_SOON_S:
            yield f"{name}={file}: expires at {of(ends):%Y-%m-%d %H:%M} UTC: renew it"


def _token_problems(endpoint: Endpoint, access: NatsAccess) -> Iterable[str]:
    if access.credentials is None and _other_hosts(endpoint):
        yield "one token permits everything to all clients: give each its own key with `eflow keys`"


def _other_hosts(endpoint: Endpoint) -> tuple[str, ...]:
    hosts = (urlsplit(url).hostname or "" for url in endpoint.nats_url.split(","))
    return tuple(host for host in hosts if host not in _LOOPBACK)


def _isolation_problems(environment: Mapping[str, str], access: NatsAccess) -> Iterable[str]:
    """Problems of the isolation of jobs by an executor with this environment."""
    has_key = access.credentials is not None
    if has_key and "EF_NODE_ID" not in environment:
        return  # the key of an operator or tenant: no executor runs with it
    mode = environment.get("EF_ISOLATION") or ("auto" if has_key else "none")
    if mode != "none" and (problem := namespaces_problem()):
        yield (
            f"jobs see the processes and files of their executor's user: {problem}; permit user namespaces and mounts, "
            "and set EF_ISOLATION=required"
        )
    if mode != "none" and (problem := filter_problem()):
        yield f"jobs may make all system calls: {problem}; install it, by `apt-get install libseccomp2` on Debian"
    if mode == "none" and os.geteuid() == 0:
        yield "this is the user root, and jobs run as the user of their executor: set EF_ISOLATION=auto for `eflow up`"


def _disk_problems(folder: Path) -> Iterable[str]:
    if (free := shutil.disk_usage(folder).free) < LEAST_FREE_BYTES:
        yield f"{folder} has {free >> 20} MiB free, less than {LEAST_FREE_BYTES >> 20} MiB: free disk space"


def _sync_findings(endpoint: Endpoint, monitor_urls: Sequence[str]) -> tuple[Finding, ...]:
    """Whether servers acknowledge only what is on their disks. NATS tells it on its HTTP page only."""
    own = endpoint.data_dir / "nats" / "server.conf" if endpoint.data_dir is not None else None
    if own is not None and own.exists():
        return _findings("sync", () if _SYNC in own.read_text() else (f"{own} has no `{_SYNC}`: restart `eflow up`",))
    if not monitor_urls:
        return (Finding(check="sync", unknown="name the HTTP page of each NATS server with --nats-monitor"),)
    return _findings("sync", map(_sync_problem, monitor_urls))


def _sync_problem(url: str) -> str | None:
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/varz", timeout=_HTTP_TIMEOUT_S) as page:
            syncs = json.load(page)["jetstream"]["config"].get("sync_always", False)
    except (OSError, ValueError, KeyError) as error:
        return f"{url}/varz cannot be read ({error}): set `http` in the configuration of NATS"
    return None if syncs else f"{url} may lose what it has acknowledged: set `{_SYNC}` in its section jetstream"


def _version_problems() -> Iterable[str]:
    try:
        require_one_version()
    except ElasticFlowError as error:
        yield str(error)
    if (problem := torch_problem()) is not None:
        yield problem
