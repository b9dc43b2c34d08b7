"""Maps that never change: one with another value shares most of its memory with the first one.

`immutables` where it has a wheel. Python 3.14 and later take `rpds-py`, which has wheels there and is 4 to 13 times
slower. So no user needs a compiler to submit a job.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class MapOfRpds(Mapping[K, V], Generic[K, V]):
    """The part of `immutables.Map` that the project uses, over a trie of rpds."""

    __slots__ = ("_trie",)

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        from rpds import HashTrieMap

        self._trie: Any = items._trie if isinstance(items, MapOfRpds) else HashTrieMap(items)

    def __getitem__(self, key: K) -> V:
        value: V = self._trie[key]
        return value

    def __iter__(self) -> Iterator[K]:
        return iter(self._trie)

    def __len__(self) -> int:
        return len(self._trie)

    def __contains__(self, key: object) -> bool:
        return key in self._trie

    def __eq__(self, other: object) -> bool:
        return self._trie == other._trie if isinstance(other, MapOfRpds) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self.items()))

    def __repr__(self) -> str:
        return f"Map({dict(self)!r})"

    def set(self, key: K, value: V) -> "MapOfRpds[K, V]":
        return self._with(self._trie.insert(key, value))

    def delete(self, key: K) -> "MapOfRpds[K, V]":
        """Raises KeyError."""
        return self._with(self._trie.remove(key))

    def update(self, items: Mapping[K, V] | Iterable[tuple[K, V]]) -> "MapOfRpds[K, V]":
        return self._with(self._trie.update(items._trie if isinstance(items, MapOfRpds) else dict(items)))

    def mutate(self) -> "_Mutation[K, V]":
        return _Mutation(self)

    def _with(self, trie: Any) -> "MapOfRpds[K, V]":
        made: MapOfRpds[K, V] = MapOfRpds.__new__(MapOfRpds)
        made._trie = trie
        return made


class _Mutation(Generic[K, V]):
    """Another map in the making."""

    __slots__ = ("_map",)

    def __init__(self, base: MapOfRpds[K, V]) -> None:
        self._map = base

    def __getitem__(self, key: K) -> V:
        return self._map[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._map = self._map.set(key, value)

    def __delitem__(self, key: K) -> None:
        self._map = self._map.delete(key)

    def __contains__(self, key: object) -> bool:
        return key in self._map

    def get(self, key: K, default: V | None = None) -> V | None:
        return self._map.get(key, default)

    def pop(self, key: K, default: Any) -> Any:
        value = self._map.get(key, default)
        if key in self._map:
            self._map = self._map.delete(key)
        return value

    def finish(self) -> MapOfRpds[K, V]:
        return self._map


if TYPE_CHECKING:
    from immutables import Map
else:
    try:
        from immutables import Map
    except ModuleNotFoundError:
        Map = MapOfRpds

__all__ = ("Map", "MapOfRpds")
