"""Groups and reader processes that are no longer needed are released in a thread: closing them takes time."""

import threading
import time

from elasticflow.services.executor.worker.elastic.groups import Group

_DELAY_S = 1.0  # until the training thread holds no reference: the last holder waits for the closing


def release_later(*things: object) -> None:
    """Drop references in a background thread."""
    threading.Thread(target=_release, args=(list(things),), name="release", daemon=True).start()


def _release(things: list[object]) -> None:
    time.sleep(_DELAY_S)
    for thing in things:
        if isinstance(thing, Group):  # a traceback may still refer to it
            thing.release()
    things.clear()
