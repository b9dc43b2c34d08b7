"""What a service does beside its decisions: deletions, uploads, views, notices. None of it can end the service.

A task of it that fails is logged, counted and begun again (docs/adr/0100).
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 300.0


async def keep_up(
    name: str,
    work: Callable[[], Coroutine[Any, Any, None]],
    *,
    log: Any,
    count_failure: Callable[[str], None] = lambda _: None,
) -> None:
    """Run the work, again after each failure, until it returns or is cancelled.

    The pause doubles with each failure, and is the first one again for a work that has run for LAST_RETRY_S.
    """
    retry_s = FIRST_RETRY_S
    while True:
        began_s = time.monotonic()
        try:
            return await work()
        except Exception as error:  # of any kind: what jobs and users do reaches this work
            if time.monotonic() - began_s > LAST_RETRY_S:
                retry_s = FIRST_RETRY_S
            count_failure(name)
            log.exception("HousekeepingFailed", task=name, error=f"{type(error).__name__}: {error}", retry_s=retry_s)
        await asyncio.sleep(retry_s)
        retry_s = min(2.0 * retry_s, LAST_RETRY_S)
