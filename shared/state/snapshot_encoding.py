"""A folded pool as bytes: a cache that may be deleted at any time, so that a restart need not fold from sequence 1.

A snapshot names the fold and the shape of the state. After either changes, older snapshots are not read, except those
with which an epoch of the ledger began: they replace the messages before it. So each field of the state has a default,
and what a field may hold only grows (docs/adr/0061).
"""

import hashlib
import types
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass, make_dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, cast, get_args, get_origin, get_type_hints

import msgpack  # pyright: ignore[reportMissingTypeStubs]
from pydantic import TypeAdapter, ValidationError

from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.fold.ledger_fold import FOLD
from elasticflow.shared.state.pool import PoolState

_FIELDS = tuple(each.name for each in fields(PoolState) if each.init)
_HINTS = get_type_hints(PoolState, include_extras=True)
_MAPS = tuple(name for name in _FIELDS if get_origin(_HINTS[name]) is Map)


def shape_of(root: type[Any]) -> str:
    """A digest of the fold and of all types that are reachable from this one, the same in every process."""
    described: dict[type[Any], object] = {}
    pending: list[Any] = [root]
    while pending:
        hint = pending.pop()
        pending += get_args(hint)
        if not isinstance(hint, type) or hint in described:
            continue
        kind = cast(type[Any], hint)
        if issubclass(kind, Enum):
            described[kind] = [member.value for member in kind]
        elif is_dataclass(kind) or hasattr(kind, "_fields"):
            described[kind] = get_type_hints(kind)  # without bounds: their repr may contain an address
            pending += get_type_hints(kind).values()
    named = sorted((kind.__qualname__, repr(description)) for kind, description in described.items())
    return hashlib.sha256(repr((FOLD, named)).encode()).hexdigest()[:16]


SHAPE = shape_of(PoolState)


def _plain(hint: Any) -> Any:
    return types.GenericAlias(dict, get_args(hint)) if get_origin(hint) in (Map, Mapping) else hint


def _default(name: str) -> Any:
    value = getattr(PoolState(), name)
    return dict(value) if name in _MAPS else value


# PoolState with plain dicts for its maps. A snapshot of an older shape lacks fields.
_Flat = make_dataclass(
    "_Flat",
    [
        ("shape", str),
        *((name, _plain(_HINTS[name]), field(default_factory=partial(_default, name))) for name in _FIELDS),
    ],
)


@cache
def _adapter() -> TypeAdapter[Any]:
    """Built on first use: most commands read no snapshot."""
    return TypeAdapter(_Flat)


def dump(state: PoolState) -> bytes:
    """The state as msgpack."""
    flat = {name: getattr(state, name) for name in _FIELDS}
    for name in _MAPS:
        flat[name] = dict(flat[name])
    plain = _adapter().dump_python(_Flat(shape=SHAPE, **flat), warnings=False)
    return cast(bytes, msgpack.packb(plain))  # pyright: ignore[reportUnknownMemberType]


def load(data: bytes, *, of_any_shape: bool = False) -> PoolState:
    """The state in these bytes. Raises Undecodable for damaged bytes, and unless permitted for another shape."""
    try:
        plain = msgpack.unpackb(data, strict_map_key=False)  # pyright: ignore
        is_ours = isinstance(plain, dict) and cast(Mapping[str, Any], plain).get("shape") == SHAPE
        if not (is_ours or of_any_shape):
            raise Undecodable("a snapshot of another shape")
        flat = _adapter().validate_python(plain)
    except (ValueError, TypeError, msgpack.UnpackException, ValidationError) as error:
        raise Undecodable(f"damaged snapshot: {type(error).__name__}") from error
    values: dict[str, Any] = {name: getattr(flat, name) for name in _FIELDS}
    for name in _MAPS:
        values[name] = Map(values[name])
    return PoolState(**values)
