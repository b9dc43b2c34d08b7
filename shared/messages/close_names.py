"""Names that are close to one that nobody has, to end an error with: a mistyped one, or the beginning of one. Pure."""

import difflib
from bisect import bisect_left
from collections.abc import Iterable

_MOST_COMPARED = 1000  # of a comparison with each name, a policy takes 30 ms at most


def close_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Up to two similar names, and up to two that begin with this one. Of very many, the neighbours of it in order."""
    names = sorted(set(known))
    if len(names) > _MOST_COMPARED:
        place = bisect_left(names, name)
        names = names[max(place - _MOST_COMPARED // 2, 0) :][:_MOST_COMPARED]
    begun = [each for each in names if name and each.startswith(name)]
    return tuple(dict.fromkeys([*difflib.get_close_matches(name, names, n=2), *begun[:2]]))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question about close names, after what was said; "" if none is close."""
    close = close_names(name, known)
    return f"; did you mean {' or '.join(close)}?" if close else ""
