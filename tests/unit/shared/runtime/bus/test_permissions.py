"""What nodes and tenants may do on the bus: everything in their own name, nothing in that of another."""

from elasticflow.shared.messages import subjects
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.permissions import Role, permissions
from elasticflow.simulator.pipeline.memory_broker import matches

POOL, JOB = "p", "a"


def written_by(node_id: str) -> set[str]:
    """What only this node may write: its events, and its record."""
    return {
        subjects.node(POOL, node_id),
        subjects.job(POOL, JOB, node_id),
        streams.value_subject(streams.node_bucket(POOL), node_id),
    }


def sent_by(tenant: str) -> set[str]:
    """What only this tenant may send."""
    return {subjects.submit(tenant, POOL), subjects.quote(tenant, POOL)}


def read_by(tenant: str) -> set[str]:
    """What only this tenant may read."""
    view = streams.value_subject(streams.view_bucket(POOL), streams.tenant_view_key(tenant))
    return {subjects.answer(tenant, POOL, JOB), view}


def permitted(patterns: tuple[str, ...], among: set[str]) -> set[str]:
    return {subject for subject in among if any(matches(pattern, subject) for pattern in patterns)}


def test_a_node_writes_in_its_own_name_only() -> None:
    of_all = {subjects.plan(POOL), subjects.job(POOL, JOB), subjects.submit("lab", POOL)}
    own = permissions(Role.NODE, POOL, "n1")
    assert permitted(own.publish, written_by("n1") | written_by("n2") | of_all) == written_by("n1")


def test_a_tenant_sends_and_reads_in_its_own_name_only() -> None:
    of_all = {subjects.plan(POOL), subjects.job(POOL, JOB), subjects.node(POOL, "n1")}
    own = permissions(Role.TENANT, POOL, "lab")
    assert permitted(own.publish, sent_by("lab") | sent_by("other") | of_all) == sent_by("lab")
    assert permitted(own.subscribe, read_by("lab") | read_by("other") | of_all) == read_by("lab")
