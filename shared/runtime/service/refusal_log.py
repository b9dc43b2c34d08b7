"""The log of refusals: a sender of thousands fills neither the disk nor the eyes of the operator."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

COUNTED_S = 60.0
MAX_AT_ONCE = 100  # senders and kinds that are counted apart; a flood may come under many names


@dataclass(slots=True)
class _Counted:
    """number: further refusals since the one that was written in full."""

    since_s: float
    number: int = 0


class RefusalLog:
    """Writes the first refusal of a kind and sender in a minute in full, and then how many followed.

    write_line: a method of the log, such as `log.warning`.
    """

    def __init__(self, write_line: Callable[..., None]) -> None:
        self._write_line = write_line
        self._counted: dict[tuple[str, str], _Counted] = {}  # by kind and sender, the oldest first

    def write(self, kind: str, sender: str, now_s: float, **keys: Any) -> None:
        """sender: a tenant, a subject, or "" if all count as one. keys: of the full line."""
        self.write_counts(now_s)
        key = (kind, sender)
        if key not in self._counted and len(self._counted) >= MAX_AT_ONCE:
            key = (kind, "")
        elif key not in self._counted:
            self._counted[key] = _Counted(now_s)
            self._write_line(kind, **keys)
            return
        self._counted.setdefault(key, _Counted(now_s)).number += 1

    def close(self) -> None:
        """Write what was counted so far: nothing is written any more."""
        self.write_counts(math.inf)

    def write_counts(self, now_s: float) -> None:
        """How many were not written in full, of each minute that has passed."""
        for (kind, sender), counted in tuple(self._counted.items()):
            if 0.0 <= now_s - counted.since_s < COUNTED_S:  # else it has passed, or the clock was set
                break
            del self._counted[kind, sender]
            if counted.number:
                since_s = round(counted.since_s, 3)
                self._write_line("RefusalsCounted", kind=kind, sender=sender, number=counted.number, since_s=since_s)
