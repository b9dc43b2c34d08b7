"""What a tenant's view holds, and how its bytes may grow."""

from dataclasses import make_dataclass, replace
from typing import Any, cast

import msgpack
import pytest

from elasticflow.services.admission.policy import POLICY
from elasticflow.shared.messages import events
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.state import tenant_view
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.tenant_view import (
    AsOf,
    PoolPart,
    StoredView,
    TenantBodies,
    TenantPart,
    WriterPosition,
    body_of_pool,
    decode_small,
    encode_small,
    pool_part,
    tenant_parts,
    without_other_jobs,
)
from testbed.histories import LINEAR, NOW_S, History, gpus, pool, spec

OF_OTHERS = (b"globex", b"secret-project")


def packed(value: object) -> bytes:
    return cast(bytes, msgpack.packb(value))


def shared_pool() -> History:
    """Two tenants with a job each, quotas, curves, GPU limits and a slow GPU."""
    history = pool(
        4,
        4,
        quotas={"acme": TenantQuota(max_jobs_per_day=9), "globex": TenantQuota(max_jobs_per_day=7)},
        curves={"globex/secret-project-model/b64": LINEAR},
    )
    for tenant, job_id in (("acme", "line"), ("globex", "secret-project")):
        command = SubmitJob(job_id=job_id, tenant=tenant, spec=spec(model_name="linear", owner=tenant))
        (admitted,) = history.decided(POLICY, command)
        assert isinstance(admitted, events.JobAdmitted)
    placements = tuple(
        events.PlacedJob(job_id=job_id, generation=1, gpus=gpus(f"node-{index}:0", f"node-{index}:1"))
        for index, job_id in enumerate(("line", "secret-project"))
    )
    placed = events.PlacementDecided(placements=placements, at_s=NOW_S)
    history.then(events.PlanDecided(service="placement", based_on=5, now_s=NOW_S, events=(placed,)))
    history.started("line").started("secret-project")
    return history.then(
        events.WorkerLagged(job_id="secret-project", generation=1, rank=0, slowdown=2.0, at_s=NOW_S + 1.0),
        events.GpuLimitsSet(job_id="secret-project", min_gpus=None, max_gpus=4, until_s=None, at_s=NOW_S + 1.0),
    )


def test_no_byte_of_a_view_names_another_tenant_or_its_jobs() -> None:
    state = shared_pool().state
    assert state.nodes["node-1"].slow_gpus
    assert set(state.gpu_limits) == {"secret-project"}
    part = tenant_parts(state)["acme"]
    assert set(part.live_jobs) == {"line"}
    for written in (repr(part), repr(pool_part(state))):
        assert not any(word.decode() in written for word in OF_OTHERS)
    assert "globex" in repr(state)


def test_a_tenant_sees_the_curves_of_its_own_and_of_no_one() -> None:
    part = tenant_parts(shared_pool().state)["acme"]
    assert set(part.curves) == {"linear/b64", "acme/linear/b64"}
    assert part.profile_owners == {"linear/b64": ("acme",)}


def test_another_job_changes_no_byte_of_a_view() -> None:
    """The monitor writes only the views that have changed."""
    history, bodies = shared_pool(), TenantBodies()
    before = bodies.body(tenant_parts(history.state)["acme"])
    history.finished("secret-project", at_s=NOW_S + 9.0)
    assert history.state.ended_jobs["secret-project"].phase is Phase.FINISHED
    assert bodies.body(tenant_parts(history.state)["acme"]) == before
    history.finished("line", at_s=NOW_S + 9.0)
    assert bodies.body(tenant_parts(history.state)["acme"]) != before


def test_of_too_many_ended_jobs_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = {
        name: Job(
            job_id=name,
            tenant="acme",
            spec=None,
            phase=Phase.FAILED,
            decided_at_s=0.0,
            decided_sequence=1,
            explanation="x" * 1_000,
            ended_at_s=float(index),
        )
        for index, name in enumerate(("old", "newer", "newest"))
    }
    monkeypatch.setattr(tenant_view, "MAX_ENDED_BYTES", 4_500)
    body = TenantBodies().body(TenantPart(ended_jobs=ended))
    assert set(StoredView(sequence=1, body=body).part(TenantPart).ended_jobs) == {"newer", "newest"}


def test_fields_of_a_newer_monitor_are_ignored() -> None:
    part = tenant_parts(shared_pool().state)["acme"]
    newer = make_dataclass("Newer", [("added", int, 7)], bases=(Job,), frozen=True, kw_only=True)
    jobs = {name: newer(**vars(job)) for name, job in part.live_jobs.items()}
    body = TenantBodies().body(replace(part, live_jobs=jobs))
    assert StoredView(sequence=1, body=body).part(TenantPart) == part


def test_an_older_monitor_may_lack_fields() -> None:
    body = tenant_view.zlib.compress(packed({"live_jobs": {}, "added": 1}))
    assert StoredView(sequence=1, body=body).part(TenantPart) == TenantPart()


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x01", msgpack.packb({"version": 1}), msgpack.packb({"version": 2})])
def test_other_bytes_are_no_view(data: bytes) -> None:
    with pytest.raises(Undecodable):
        StoredView.decode(data)


def test_a_view_of_another_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    data = StoredView(sequence=1, body=body_of_pool(pool_part(shared_pool().state))).encode()
    assert isinstance(StoredView.decode(data).part(PoolPart), PoolPart)
    monkeypatch.setattr(tenant_view, "VIEW_VERSION", 2)
    with pytest.raises(Undecodable, match="upgrade"):
        StoredView.decode(data)


@pytest.mark.parametrize("body", [b"", b"not compressed", tenant_view.zlib.compress(packed({"nodes": 3}))])
def test_a_damaged_body_is_refused(body: bytes) -> None:
    with pytest.raises(Undecodable):
        StoredView(sequence=1, body=body).part(PoolPart)


@pytest.mark.parametrize("value", [AsOf(sequence=7, at_s=3.5), WriterPosition(histories_to=6, tenants=("acme",))])
def test_small_values_come_back(value: Any) -> None:
    assert decode_small(type(value), encode_small(value)) == value


def test_of_an_event_the_schedules_of_other_jobs_are_left_out() -> None:
    state = shared_pool().state
    admitted = events.JobAdmitted(
        job_id="line",
        tenant="acme",
        spec=spec(),
        deadline_s=None,
        minimum_satisfactory_share=(),
        gpu_seconds=1.0,
        replanned={"line": (NOW_S, NOW_S + 1.0, 1), "secret-project": (NOW_S, NOW_S + 1.0, 1)},
        at_s=NOW_S,
    )
    assert set(without_other_jobs(state, "acme", admitted).replanned) == {"line"}
    finished = events.JobCancelled(job_id="line", reason="", at_s=NOW_S)
    assert without_other_jobs(state, "acme", finished) is finished
