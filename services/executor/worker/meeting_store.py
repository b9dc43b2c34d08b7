"""A store for those who meet, in which nobody waits any longer once the meeting is given up.

torch's own stores wait inside of the library, where nothing reaches them: for minutes, with a thread and sockets, if
one of those who were to come has died.
"""
# pyright: reportPrivateImportUsage=false

import threading
import time
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

_FIRST_LOOK_S, _LAST_LOOK_S = 0.001, 0.02


class GivenUp(RuntimeError):
    """Nobody needs what was waited for."""

    def __init__(self) -> None:
        super().__init__("the meeting was given up")


class MeetingStore(dist.Store):
    """Another store, as far as gloo uses one. given_up: when to stop waiting."""

    def __init__(self, store: dist.Store, given_up: threading.Event, *, wait_s: float) -> None:
        super().__init__()
        self._store, self._given_up, self._wait_s = store, given_up, wait_s

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def add(self, key: str, value: int) -> int:
        return self._store.add(key, value)

    def check(self, keys: Sequence[str]) -> bool:
        return self._store.check(list(keys))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._store.get(key)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Raises GivenUp, RuntimeError if they do not come in time."""
        wait_s = self._wait_s if timeout is None else timeout.total_seconds()
        give_up_s, look_s = time.monotonic() + wait_s, _FIRST_LOOK_S
        while not self.check(keys):
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"{', '.join(keys)} did not come within {wait_s:.0f} s")
            if self._given_up.wait(look_s):
                raise GivenUp
            look_s = min(2 * look_s, _LAST_LOOK_S)
