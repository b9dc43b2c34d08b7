"""Whether each curve of a pool's configuration belongs to a GPU type of its nodes, each doubt with what to do."""

from collections.abc import Iterable

from elasticflow.shared.state.pool import PoolState


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
