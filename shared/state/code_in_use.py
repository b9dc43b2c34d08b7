"""What live jobs, live loads and reservations of a pool may still need: code, packages, environments, data, and
checkpoints of jobs that they continue. Pure."""
# pyright: strict

from collections.abc import Iterator

from elasticflow.shared.state.pool import PoolState


def code_digests(state: PoolState) -> Iterator[tuple[str, str]]:
    """Pairs of a tenant and the digest of its code; some occur twice."""
    for job in state.live_jobs.values():
        for spec in (job.spec, job.submitted_spec):
            if spec is not None and spec.code_digest:
                yield job.tenant, spec.code_digest
    for load in state.loads.values():
        if load.live and load.spec.code_digest:
            yield load.tenant, load.spec.code_digest
    for reservation in state.quote_reservations.values():
        if reservation.spec.code_digest:
            yield reservation.tenant, reservation.spec.code_digest


def requirements_in_use(state: PoolState) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Pairs of a tenant and the requirements of one of its live jobs; some occur twice."""
    for job in state.live_jobs.values():
        for spec in (job.spec, job.submitted_spec):
            if spec is not None and spec.requirements:
                yield job.tenant, spec.requirements


def tenants_with_own_environments(state: PoolState) -> Iterator[str]:
    """The tenants of live jobs that have an environment of their own; some occur twice."""
    for job in state.live_jobs.values():
        for spec in (job.spec, job.submitted_spec):
            if spec is not None and spec.own_environment is not None:
                yield job.tenant


def folder_set_aside(job_id: str, identity: str) -> str:
    """The name that each folder of a job, as that of its checkpoints, has once a later job has taken its id."""
    return f"{job_id}.of-{identity}"


def continued_folders(state: PoolState) -> set[str]:
    """The names of folders with checkpoints that live jobs begin from, until the first worker has linked them."""
    jobs = (job.spec.continues for job in state.live_jobs.values() if job.spec is not None)
    continued = [job for job in jobs if job is not None]
    aside = {folder_set_aside(job.job_id, identity) for job in continued for identity in job.writers}
    return aside.union(job.job_id for job in continued)


def data_in_use(state: PoolState) -> Iterator[tuple[str, str]]:
    """Pairs of a tenant and the URI of data of one of its live jobs; some occur twice."""
    for job in state.live_jobs.values():
        for spec in (job.spec, job.submitted_spec):
            if spec is not None:
                yield from ((job.tenant, uri) for uri in spec.data.values())
