"""How many bytes of commands each tenant may send: the ledger keeps what admission decides on, rejections included.

Each replica of admission counts for itself, from its start, in a bucket that empties evenly over a day.
"""

from collections.abc import Callable

from elasticflow.shared.messages.pool_config import DAY_S

LEAST_BYTES = 1024  # that a command counts: its answer takes space, too
MAX_TENANTS = 10_000  # whose use is known; of more, the one that sent longest ago counts as unused


class CommandBudgets:
    """bytes_per_day: of each tenant, by its name."""

    def __init__(self, bytes_per_day: Callable[[str], int]) -> None:
        self._bytes_per_day = bytes_per_day
        self._used: dict[str, tuple[float, float]] = {}  # bytes, and at what time; who sent last is at the end

    def use(self, tenant: str, num_bytes: int, now_s: float) -> str | None:
        """Count a command, or say why it is not taken now, and when it would be."""
        num_bytes, limit = max(num_bytes, LEAST_BYTES), self._bytes_per_day(tenant)
        before, at_s = self._used.pop(tenant, (0.0, now_s))
        used = max(before - (now_s - at_s) * limit / DAY_S, 0.0)
        fits = used + num_bytes <= limit
        self._used[tenant] = used + num_bytes * fits, now_s
        if len(self._used) > MAX_TENANTS:
            del self._used[next(iter(self._used))]
        if fits:
            return None
        limited = f"tenant {tenant} has sent as many bytes of commands as it may in a day ({limit:,})"
        if num_bytes > limit:
            return f"{limited}; this one alone has {num_bytes:,}"
        return f"{limited}; retry in {(used + num_bytes - limit) * DAY_S / limit:.0f} s"
