"""The fold of profiles that have owners. Part of `ledger_fold`.

The curves without an owner are those of the pool's configuration, and those that older jobs measured. Where an owner's
first job begins, its own curves equal these; from then on only its own jobs measure them. A new configuration sets the
curves of all owners (docs/adr/0067).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from elasticflow.shared.frozen_values import fast_replace, memoize_last
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.pool import PoolState


def with_own_curves(state: PoolState, spec: JobSpec) -> PoolState:
    """The state with curves of the owner of this profile, on all GPU types."""
    owner, owners = spec.profile_owner, state.profile_owners.get(spec.profile_family, ())
    if not owner or owner in owners:
        return state
    curves, sizes = state.curves.mutate(), state.micro_batch_sizes.mutate()
    for key in _whole_keys(state, spec.profile_family):
        own = f"{owner}/{key}"
        if key in state.micro_batch_sizes and own not in state.micro_batch_sizes:
            sizes[own] = state.micro_batch_sizes[key]
        if key not in state.curves or own in state.curves:
            continue
        curve = replace(state.curves[key], failure="")  # of code of another owner
        curves[own] = curve
        for gpu_range in curve.parts:
            curves[gpu_range.profile_key(own)] = replace(state.curves[gpu_range.profile_key(key)], failure="")
    return fast_replace(
        state,
        curves=curves.finish(),
        micro_batch_sizes=sizes.finish(),
        profile_owners=state.profile_owners.set(spec.profile_family, (*owners, owner)),
    )


def configured_keys(state: PoolState, config: PoolConfig, key: str) -> Iterator[str]:
    """The curves that a curve of the configuration sets: that without an owner, and those of all owners for which the
    configuration has none of their own."""
    yield key
    owned = (f"{owner}/{key}" for owner in state.profile_owners.get(_family_of(key), ()))
    yield from (own for own in owned if own not in config.curves)


def readable_curves(state: PoolState, owner: str) -> dict[str, MeasuredCurve]:
    """By key without an owner: the curves of this owner and, where it has none, those without an owner."""
    by_owner = curves_by_owner(state.curves, state.profile_owners)
    own: Mapping[str, MeasuredCurve] = by_owner.get(owner, {}) if owner else {}
    return dict(by_owner.get("", {})) | {key.removeprefix(f"{owner}/"): curve for key, curve in own.items()}


@memoize_last
def curves_by_owner(
    curves: Mapping[str, MeasuredCurve], profile_owners: Mapping[str, tuple[str, ...]]
) -> Mapping[str, Mapping[str, MeasuredCurve]]:
    """The curves of each owner, by their whole keys; those without an owner under ""."""
    owner_of = {f"{each}/{family}": each for family, owners in profile_owners.items() for each in owners}
    found = dict[str, dict[str, MeasuredCurve]]()
    for key, curve in curves.items():
        found.setdefault(owner_of.get(_family_of(key), ""), {})[key] = curve
    return found


def _whole_keys(state: PoolState, family: str) -> Iterator[str]:
    """Without an owner, of a family, as far as curves may exist."""
    on_types = (family, *(f"{family}@{gpu_type}" for gpu_type in state.gpu_types))
    yield from dict.fromkeys((*on_types, *_configured_by_family(state.config.curves).get(family, ())))


@memoize_last
def _configured_by_family(curves: Mapping[str, object]) -> Mapping[str, list[str]]:
    found = dict[str, list[str]]()
    for key in curves:
        found.setdefault(_family_of(key), []).append(key)
    return found


def _family_of(profile_key: str) -> str:
    """As `JobSpec.profile_family`: "resnet50/b256" of "resnet50/b256@P100[2..8]"."""
    model, slash, batch = profile_key.rpartition("/")
    return f"{model}{slash}{batch.partition('[')[0].partition('@')[0]}"
