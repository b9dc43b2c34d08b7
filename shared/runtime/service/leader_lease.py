"""Leases: one holder at a time, most of the time.

A lease saves work (standbys need not decide what the holder decides); it is never what makes a decision safe:
a paused holder may wake up late. What must be safe is appended by compare-and-set.

The server forgets the key after its time to live; the candidate that creates it then is the next holder. Every step is
a compare-and-set on the key's revision. A key that was stored without a time to live stays: it counts as expired once a
candidate has seen it unchanged for longer than a holder leaves it so.
"""

import asyncio
import contextlib
from collections.abc import Callable

from elasticflow.shared.errors import ElasticFlowError, LeaseLost, MaybeStored, Retry, WrongExpectedSequence
from elasticflow.shared.runtime.bus.streams import state_bucket
from elasticflow.shared.runtime.service.service_context import ServiceContext

_RELEASE_TIMEOUT_S = 1.0
_FREE = b""  # the value of a released lease
_EXPIRED_TTLS = 2  # a holder renews three times within one


class Lease:
    """One candidate for one lease of a pool. ttl_s: how long it lasts from now on, in whole seconds, at least one.
    is_candidate(): False leaves it to others.
    """

    def __init__(
        self,
        context: ServiceContext,
        name: str,
        *,
        ttl_s: Callable[[], int],
        is_candidate: Callable[[], bool] = lambda: True,
    ) -> None:
        self._bus = context.bus
        self._bucket = state_bucket(context.pool)
        self._key = f"lease.{name}"
        self._name = name
        self._holder_id = context.instance
        self._ttl_s = ttl_s
        self._clock = context.clock
        self._is_candidate = is_candidate
        self._revision = 0
        self._until_s = float("-inf")
        self._seen_revision, self._seen_s = 0, float("inf")  # another holder's, and since when

    @property
    def held(self) -> bool:
        """Whether this process holds the lease, as far as it knows: the server counts from a later instant."""
        return self._clock.now_s() < self._until_s

    async def try_acquire(self) -> bool:
        """Take it if it is free. Raises Retry if the bus cannot be reached."""
        if await self._write(self._holder(), expected_revision=0):
            return True
        value = await self._bus.get_value(self._bucket, self._key)
        if value is None:
            return False
        if value.data not in (_FREE, self._holder()) and not self._is_expired(value.revision):
            return False
        return await self._write(self._holder(), expected_revision=value.revision)

    def _is_expired(self, revision: int) -> bool:
        """Whether this revision of another holder was seen for so long that its time to live is over."""
        now_s = self._clock.now_s()
        if revision != self._seen_revision:
            self._seen_revision, self._seen_s = revision, now_s
        return now_s - self._seen_s > _EXPIRED_TTLS * self._ttl_s()

    async def renew(self) -> None:
        """Hold it for another ttl_s. Raises LeaseLost; Retry if the bus cannot be reached: then the lease runs on."""
        if not await self._write(self._holder(), expected_revision=self._revision):
            self._until_s = float("-inf")
            raise LeaseLost(self._name, self._holder_id)

    async def release(self) -> None:
        """Free it for the next candidate at once."""
        if self._revision:
            self._until_s = float("-inf")
            await self._write(_FREE, expected_revision=self._revision)

    async def hold(self, on_change: Callable[[bool], None] = lambda held: None) -> None:
        """Acquire, renew and acquire again until cancelled; then release.

        on_change(held) reports each change, and each renewal whose answer came after the lease had lapsed: meanwhile
        its holder did not decide.
        """
        reported = False
        try:
            while True:
                lapses_s = self._until_s
                await self._step()
                has_lapsed = self.held and self._clock.now_s() >= lapses_s
                if self.held != reported or has_lapsed:
                    reported = self.held
                    on_change(reported)
                await self._clock.sleep_until(self._clock.now_s() + self._ttl_s() / 3)
        finally:
            if reported:
                on_change(False)
            if self.held:
                with contextlib.suppress(ElasticFlowError, TimeoutError):  # else it expires by itself
                    async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                        await self.release()

    async def _step(self) -> None:
        try:
            if self.held:
                await (self.renew() if self._is_candidate() else self.release())
            elif self._is_candidate():
                await self.try_acquire()
        except (Retry, LeaseLost):
            return  # `held` has the result

    async def _write(self, data: bytes, *, expected_revision: int) -> bool:
        """False if another candidate wrote first."""
        asked_at_s, ttl_s = self._clock.now_s(), self._ttl_s()
        try:
            revision = await self._bus.put_value(
                self._bucket, self._key, data, expected_revision=expected_revision, ttl_s=ttl_s
            )
        except WrongExpectedSequence:
            return False
        except MaybeStored:
            value = await self._bus.get_value(self._bucket, self._key)
            if value is None or value.data != data or value.revision <= expected_revision:
                raise
            revision = value.revision
        if data == _FREE:
            self._revision = 0
            return True
        self._revision = revision
        self._until_s = asked_at_s + ttl_s
        return True

    def _holder(self) -> bytes:
        return self._holder_id.encode()
