"""What a tenant sees of a pool: its own jobs, and the nodes and settings that concern all tenants. Pure.

Both parts are lists of what is seen: a new field of the state stays unseen until it is named here (docs/adr/0071).
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, TypeVar, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]
from pydantic import TypeAdapter, ValidationError

from elasticflow.shared.frozen_values import memoize_last
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.gpus import GpuLimits
from elasticflow.shared.messages.job_spec import SHARED
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.fold.profiles import curves_by_owner
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.load import Load
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.pool import NodeState, PoolState, QuoteReservation

Value = TypeVar("Value")
EventOfAJob = TypeVar("EventOfAJob")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPart:
    """What all tenants see: the nodes without what ran on them, the settings without those of single tenants."""

    config: PoolConfig
    configured: bool
    nodes: Mapping[str, NodeState]
    gpu_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPart:
    """What one tenant sees besides. Fields: as in `PoolState`, of this tenant only.

    curves: also those that tenants share, and those that belong to no tenant.
    num_left_out: live jobs that one message has no place for; the oldest.
    """

    live_jobs: Mapping[str, Job] = field(default_factory=dict[str, Job])
    ended_jobs: Mapping[str, Job] = field(default_factory=dict[str, Job])
    loads: Mapping[str, Load] = field(default_factory=dict[str, Load])
    quote_reservations: Mapping[str, QuoteReservation] = field(default_factory=dict[str, QuoteReservation])
    gpu_limits: Mapping[str, GpuLimits] = field(default_factory=dict[str, GpuLimits])
    curves: Mapping[str, MeasuredCurve] = field(default_factory=dict[str, MeasuredCurve])
    profile_owners: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    num_gpus_by_job: Mapping[str, int] = field(default_factory=dict[str, int])
    virtual_nodes_by_type: Mapping[str, Mapping[str, tuple[int, ...]]] = field(
        default_factory=dict[str, Mapping[str, tuple[int, ...]]]
    )
    num_left_out: int = 0


def pool_part(state: PoolState) -> PoolPart:
    return PoolPart(
        config=replace(state.config, quotas={}, padding_weights={}, curves={}),
        configured=state.configured,
        nodes=_without_jobs(state.nodes),
        gpu_types=state.gpu_types,
    )


@memoize_last
def _without_jobs(nodes: Mapping[str, NodeState]) -> Mapping[str, NodeState]:
    """Reports on slow GPUs name the jobs that ran there."""
    return {
        name: replace(node, incarnation="", slow_gpus=(), earlier_incarnations=())
        for name, node in sorted(nodes.items())
    }


def tenant_parts(state: PoolState) -> dict[str, TenantPart]:
    """The part of each tenant that has a job, a load or a reserved quote, by tenant."""
    live, ended = _live_by_tenant(state.live_jobs), _ended_by_tenant(state.ended_jobs)
    loads, quotes = _by_tenant(state.loads), _by_tenant(state.quote_reservations)
    return {
        tenant: _part(state, tenant, live.get(tenant, {}), ended.get(tenant, {}), loads, quotes)
        for tenant in sorted({*live, *ended, *loads, *quotes})
    }


def _part(
    state: PoolState,
    tenant: str,
    live: Mapping[str, Job],
    ended: Mapping[str, Job],
    loads: Mapping[str, Mapping[str, Load]],
    quotes: Mapping[str, Mapping[str, QuoteReservation]],
) -> TenantPart:
    owners = {
        family: seen
        for family, owners in sorted(state.profile_owners.items())
        if (seen := tuple(owner for owner in owners if owner in (tenant, SHARED)))
    }
    return TenantPart(
        live_jobs=live,
        ended_jobs=ended,
        loads={name: replace(load, counted=()) for name, load in loads.get(tenant, {}).items()},
        quote_reservations=quotes.get(tenant, {}),
        gpu_limits=_of_jobs(state.gpu_limits, live),
        curves=_curves(state, tenant),
        profile_owners=owners,
        num_gpus_by_job=_of_jobs(state.num_gpus_by_job, live),
        virtual_nodes_by_type=_of_jobs(state.virtual_nodes_by_type, live),
    )


def _curves(state: PoolState, tenant: str) -> dict[str, MeasuredCurve]:
    by_owner = curves_by_owner(state.curves, state.profile_owners)
    others = {*by_owner, *state.config.quotas, *state.config.padding_weights} - {"", SHARED, tenant}
    of_none = {  # an operator may configure a curve for a tenant before its first job
        key: curve for key, curve in by_owner.get("", {}).items() if key.partition("/")[0] not in others
    }
    return dict(sorted({**of_none, **by_owner.get(SHARED, {}), **by_owner.get(tenant, {})}.items()))


def _of_jobs(values: Mapping[str, Value], jobs: Mapping[str, Job]) -> dict[str, Value]:
    return {job_id: values[job_id] for job_id in jobs if job_id in values}


def _by_tenant(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in sorted(values.items()):
        found.setdefault(value.tenant, {})[name] = value
    return found


_live_by_tenant, _ended_by_tenant = memoize_last(_by_tenant), memoize_last(_by_tenant)


def seen_state(pool: PoolPart, tenant: TenantPart, sequence: int) -> PoolState:
    """The pool as its tenant sees it: a state without what other tenants do."""
    return PoolState(
        sequence=sequence,
        config=pool.config,
        configured=pool.configured,
        nodes=Map(pool.nodes),
        gpu_types=pool.gpu_types,
        live_jobs=Map(tenant.live_jobs),
        ended_jobs=Map(tenant.ended_jobs),
        loads=Map(tenant.loads),
        quote_reservations=Map(tenant.quote_reservations),
        gpu_limits=Map(tenant.gpu_limits),
        curves=Map(tenant.curves),
        profile_owners=Map(tenant.profile_owners),
        num_gpus_by_job=tenant.num_gpus_by_job,
        virtual_nodes_by_type=tenant.virtual_nodes_by_type,
    )


def without_other_jobs(state: PoolState, tenant: str, event: EventOfAJob) -> EventOfAJob:
    """An event or reply as the tenant may see it: jobs of others that were replanned for it are left out."""
    replanned = cast("Mapping[str, object] | None", getattr(event, "replanned", None))
    if not replanned:
        return event
    jobs = ((job_id, state.job(job_id)) for job_id in replanned)
    own = {job_id: replanned[job_id] for job_id, job in jobs if job is not None and job.tenant == tenant}
    return replace(cast(Any, event), replanned=own)


# --- view encoding -------------------------------------------------------------------------------------
# The views of tenants as bytes. Readers may be older or newer than the monitor that wrote them.
#
# A view grows by fields with defaults: older readers ignore the fields that they do not know. Any other change needs
# a new VIEW_VERSION; older readers then say that they are too old.

VIEW_VERSION = 1
# Of a tenant's jobs before their compression; older ones are left out.
MAX_ENDED_BYTES = 4 << 20
MAX_BODY_BYTES = 3 << 20  # of a view; a larger one has as many live jobs as fit without any compression
LARGE_BODY_BYTES = 512 * 1024  # such views are stored less often than `AsOf`
_MAX_BYTES = 256 << 20  # of a view after its decompression
_LEVEL = 1  # of the compression: specs of jobs repeat each other
_JOBS = ("live_jobs", "ended_jobs")

Part = TypeVar("Part", bound=object)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf:
    """All views hold up to this sequence of the ledger, which was its end at at_s."""

    sequence: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterPosition:
    """The position of the writer, for the next monitor.

    histories_to: all histories hold up to this sequence. tenants: that have a view.
    """

    histories_to: int
    tenants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredView:
    """sequence: of the ledger, up to which it holds. body: the same bytes for the same content."""

    sequence: int
    body: bytes

    def encode(self) -> bytes:
        return _packed({"version": VIEW_VERSION, "sequence": self.sequence, "body": self.body})

    @staticmethod
    def decode(data: bytes) -> "StoredView":
        """Raises Undecodable."""
        plain = _unpacked(data)
        sequence, body = plain.get("sequence"), plain.get("body")
        if not isinstance(sequence, int) or not isinstance(body, bytes):
            raise Undecodable("damaged view: it has no sequence or no body")
        return StoredView(sequence=sequence, body=body)

    def part(self, kind: type[Part]) -> Part:
        """Raises Undecodable."""
        unpacker = zlib.decompressobj()
        try:
            plain = _plain(unpacker.decompress(self.body, _MAX_BYTES))
        except zlib.error as error:
            raise Undecodable(f"damaged view: {error}") from error
        for name in _JOBS if kind is TenantPart else ():
            packed = cast(Mapping[str, bytes], plain.get(name, {}))
            plain[name] = {job_id: _plain(job) for job_id, job in packed.items()}
        return _validated(kind, plain)


def body_of_pool(part: PoolPart) -> bytes:
    return zlib.compress(_packed(_adapter(PoolPart).dump_python(part, warnings=False)), _LEVEL)


@dataclass(slots=True)
class TenantBodies:
    """Encodes the parts of tenants. Most of their jobs have not changed since the last time: their bytes are kept."""

    _kept: dict[str, tuple[Job, bytes]] = field(default_factory=dict[str, tuple[Job, bytes]])

    def body(self, part: TenantPart) -> bytes:
        live = {job_id: self._job(job) for job_id, job in part.live_jobs.items()}
        body = self._body(part, live, self._newest(part.ended_jobs, MAX_ENDED_BYTES))
        if len(body) <= MAX_BODY_BYTES:
            return body
        fitting = self._newest(part.live_jobs, MAX_BODY_BYTES)
        return self._body(replace(part, num_left_out=len(live) - len(fitting)), fitting, {})

    def _body(self, part: TenantPart, live: Mapping[str, bytes], ended: Mapping[str, bytes]) -> bytes:
        plain = _adapter(TenantPart).dump_python(part, exclude=set(_JOBS), warnings=False)
        return zlib.compress(_packed(plain | {"live_jobs": live, "ended_jobs": ended}), _LEVEL)

    def forget_others(self, parts: Mapping[str, TenantPart]) -> None:
        """Keep the bytes of these jobs only."""
        kept = {job_id for part in parts.values() for jobs in (part.live_jobs, part.ended_jobs) for job_id in jobs}
        self._kept = {job_id: value for job_id, value in self._kept.items() if job_id in kept}

    def _newest(self, jobs: Mapping[str, Job], max_bytes: int) -> dict[str, bytes]:
        newest, num_bytes = dict[str, bytes](), 0
        for job in sorted(jobs.values(), key=lambda job: (-(job.ended_at_s or job.decided_at_s), job.job_id)):
            packed = self._job(job)
            if (num_bytes := num_bytes + len(packed)) > max_bytes:
                break
            newest[job.job_id] = packed
        return newest

    def _job(self, job: Job) -> bytes:
        kept = self._kept.get(job.job_id)
        if kept is None or kept[0] is not job:
            kept = self._kept[job.job_id] = (job, _packed(_adapter(Job).dump_python(job, warnings=False)))
        return kept[1]


def encode_small(value: AsOf | WriterPosition) -> bytes:
    named = {each.name: getattr(value, each.name) for each in fields(value)}
    return _packed({"version": VIEW_VERSION} | named)


def decode_small(kind: type[Part], data: bytes) -> Part:
    """Raises Undecodable."""
    return _validated(kind, _unpacked(data))


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _validated(kind: type[Part], plain: Mapping[str, Any]) -> Part:
    known = {each.name for each in fields(cast(Any, kind))}
    try:
        return _adapter(kind).validate_python({name: value for name, value in plain.items() if name in known})
    except (ValidationError, TypeError) as error:
        raise Undecodable(f"damaged view: {type(error).__name__}") from error


def _unpacked(data: bytes) -> dict[str, Any]:
    plain = _plain(data)
    if (version := plain.get("version")) != VIEW_VERSION:
        raise Undecodable(f"it has version {version}, and this program reads version {VIEW_VERSION}: upgrade the older")
    return plain


def _plain(data: bytes) -> dict[str, Any]:
    try:
        plain = msgpack.unpackb(data, strict_map_key=False)  # pyright: ignore
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Undecodable(f"damaged view: {type(error).__name__}") from error
    if not isinstance(plain, dict):
        raise Undecodable("damaged view: no map")
    return cast(dict[str, Any], plain)


def _packed(value: object) -> bytes:
    return cast(bytes, msgpack.packb(value))  # pyright: ignore[reportUnknownMemberType]
