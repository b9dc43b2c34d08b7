"""Profiles belong to a tenant: jobs of others neither read nor change them, unless both share theirs."""

import pytest

from elasticflow.history.profile_views import profile_view
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import owned
from elasticflow.shared.state.fold.profiles import readable_curves, with_own_curves, with_profile
from elasticflow.shared.state.pool import PoolState
from testbed.histories import LINEAR, NOW_S, History, best_effort, pool, spec, submit
from tests.support.two_types import two_types
from tests.support.worker_events import job, throughput

FASTER = {1: 3.0, 2: 6.0}
ONE_KEY = {"linear/b64@P100": {1: 0.5}, "linear/b64@node": {2: 1.9}}


def running(*tenants: str, **changes: object) -> History:
    """A job of each tenant, of one model, with workers."""
    history = pool(8)
    commands = [owned(submit(tenant, tenant, **changes)) for tenant in tenants]
    for policy, given in ((ADMISSION, commands), (ALLOCATOR, ()), (PLACEMENT, ())):
        history.decided(policy, *given)
    for tenant in tenants:
        assert job(history, tenant).gpus
        history.started(tenant)
    return history


def rates(state: PoolState, key: str) -> dict[int, float]:
    return dict(state.curves[key].iterations_per_s)


def test_keys_begin_with_the_owner_or_the_mark_of_all_who_share() -> None:
    whole = spec(owner="alice", gpu_type="P100", min_gpus=2)
    assert whole.profile_key == "alice/linear/b64@P100[2..]"
    assert whole.configured_key == "linear/b64@P100"
    assert spec(owner="alice", share_profile=True).measured_key == "*/linear/b64"
    assert spec().measured_key == spec(share_profile=True).measured_key == "linear/b64"
    assert spec(owner="alice") == spec()  # its user describes the same job


def test_no_model_name_makes_the_key_of_another_owner() -> None:
    assert spec(owner="mallory", model_name="alice/linear").measured_key == "mallory/alice/linear/b64"
    assert spec(owner="mallory", model_name="alice/linear", share_profile=True).measured_key == "*/alice/linear/b64"
    assert owned(submit("a", "mallory", owner="alice")).spec.owner == "mallory"


@pytest.mark.parametrize("key", ["alice/linear/b64", "*/linear/b64", "linear/b64", "mallory/linear/b64"])
def test_a_job_measures_the_profile_of_its_own_tenant_only(key: str) -> None:
    history = running("alice", "mallory")
    before, of = history.state.curves, job(history, "mallory")
    history.then(throughput(of, 1e6, NOW_S + 9.0, profile_key=key, node_id=of.gpus[0].node_id))
    changed = {each for each, curve in history.state.curves.items() if curve != before.get(each)}
    assert changed == ({key} if key == "mallory/linear/b64" else set())
    assert rates(history.state, "alice/linear/b64") == LINEAR


def test_a_job_halves_the_micro_batches_of_its_own_tenant_only() -> None:
    history = running("alice", "mallory")
    of = job(history, "mallory")
    where = {"node_id": of.gpus[0].node_id, "rank": 0, "micro_batch_size": 64}
    exceeded = events.MemoryExceeded(job_id="mallory", generation=of.generation, at_s=NOW_S, **where)
    history.then(exceeded)
    assert dict(history.state.micro_batch_sizes) == {"mallory/linear/b64": 32}


def test_tenants_that_share_measure_one_profile() -> None:
    history = running("alice", "bob", share_profile=True)
    of = job(history, "bob")
    history.then(throughput(of, 7.0, NOW_S + 9.0, node_id=of.gpus[0].node_id))
    assert rates(history.state, "*/linear/b64")[len(of.gpus)] == 7.0
    assert job(history, "alice").spec.measured_key == "*/linear/b64"  # pyright: ignore[reportOptionalMemberAccess]


def test_own_curves_begin_as_the_configured_ones_on_all_types_and_levels() -> None:
    state = with_own_curves(two_types(curves=ONE_KEY).state, spec(owner="alice"))
    for key in ("linear/b64", *(key for key in ONE_KEY if not key.endswith("@node"))):
        assert rates(state, f"alice/{key}") == rates(state, key)
        assert state.curves[f"alice/{key}"].at_level == state.curves[key].at_level
    assert with_own_curves(state, spec(owner="alice", gpu_type="P100")) is state
    assert "bob/linear/b64" not in state.curves


def test_a_new_configuration_sets_the_curves_of_all_owners() -> None:
    history = running("alice", "bob").configured(curves={"linear/b64": FASTER, "bob/linear/b64": {1: 5.0}})
    assert rates(history.state, "linear/b64") == rates(history.state, "alice/linear/b64") == FASTER
    assert rates(history.state, "bob/linear/b64") == {1: 5.0}  # the operator gave bob's its own


def test_a_part_of_an_older_profile_is_taken_over_too() -> None:
    history = pool(8)
    history.decided(ADMISSION, submit("old", model_name="new", min_gpus=2))
    history.then(events.ProfileCompleted(profile_key="new/b64", iterations_per_s=LINEAR, at_s=NOW_S))
    state = with_profile(history.state, spec(owner="alice", model_name="new", min_gpus=2))
    assert rates(state, "alice/new/b64[2..]") == {2: 2.0, 4: 4.0, 8: 8.0}


def test_the_failure_of_an_older_profile_is_not_taken_over() -> None:
    history = pool(8)
    history.decided(ADMISSION, submit("old", model_name="new"))
    history.decided(ALLOCATOR)
    history.decided(PLACEMENT)
    failed = events.ProfilingFailed(job_id="old", generation=1, gpu_type="", error="boom", at_s=NOW_S)
    state = with_own_curves(history.then(failed).state, spec(owner="alice", model_name="new"))
    assert state.curves["new/b64"].failure == "boom"
    assert not state.curves["alice/new/b64"].failure


def test_a_tenant_reads_its_own_curves_and_those_without_an_owner() -> None:
    history = running("alice", "mallory").then(
        events.ProfileCompleted(profile_key="alice/linear/b64", iterations_per_s=FASTER, at_s=NOW_S),
        events.ProfileCompleted(profile_key="mallory/linear/b64", iterations_per_s={1: 1e6}, at_s=NOW_S),
    )
    readable = readable_curves(history.state, "alice")
    assert {key: curve.iterations_per_s for key, curve in readable.items()} == {"linear/b64": FASTER}
    assert readable_curves(history.state, "bob")["linear/b64"].iterations_per_s == LINEAR


def test_a_profile_is_shown_as_its_tenant_measured_it() -> None:
    history = running("alice", "bob")
    history.then(events.ProfileCompleted(profile_key="alice/linear/b64", iterations_per_s=FASTER, at_s=NOW_S))
    for tenant, expected in (("alice", FASTER), ("bob", LINEAR)):
        view = profile_view(history.state, best_effort(owner=tenant))
        assert view is not None
        assert view.profile_key == f"{tenant}/linear/b64"
        assert {point.num_gpus: point.iterations_per_s for point in view.points} == expected
