"""Times as people write and read them: "90s", "2h30m", "2026-05-01T18:00", "in 4 m 10 s"."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """One of both at most: absolute, in seconds since 1970, or relative to the decision."""

    at_s: float | None = None
    in_s: float | None = None


def parse_deadline(text: str) -> Deadline:
    """A duration ("90s", "1h30m") or an ISO time, local unless it names a zone. Raises ValueError."""
    if _DURATION.fullmatch(text):
        return Deadline(in_s=parse_duration_s(text))
    try:
        return Deadline(at_s=datetime.fromisoformat(text).timestamp())
    except ValueError:
        raise ValueError(
            f"{text!r} is no deadline; write a duration (90s, 15m, 2h30m, 1d) or a time (2026-05-01T18:00)"
        ) from None


def parse_duration_s(text: str) -> float:
    """Seconds in "90s", "1h30m", "2d". Raises ValueError."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is no duration; write 90s, 15m, 2h30m or 1d")
    return sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(text))


def duration_in_words(seconds: float) -> str:
    """The two largest units that matter: "4m 10s", "2h 05m", "3d 04h"; "12.4s" below a minute."""
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if seconds < 59.95:
        return f"{sign}{seconds:.1f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{sign}{whole // 60}m {whole % 60:02d}s"
    if whole < 86_400:
        return f"{sign}{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{sign}{whole // 86_400}d {whole % 86_400 // 3600:02d}h"


def clock_time(at_s: float, *, now_s: float | None = None) -> str:
    """Local time of day; with its date when now_s is given and falls on another day."""
    moment = datetime.fromtimestamp(at_s, UTC).astimezone()
    if now_s is not None and datetime.fromtimestamp(now_s, UTC).astimezone().date() != moment.date():
        return moment.strftime("%Y-%m-%d %H:%M:%S")
    return moment.strftime("%H:%M:%S")


def moment_in_words(at_s: float, now_s: float) -> str:
    """As "15:04:14 (in 21.2s)", or "15:04:14 (21.2s ago)"."""
    left = duration_in_words(abs(at_s - now_s))
    return f"{clock_time(at_s, now_s=now_s)} ({f'in {left}' if at_s > now_s else f'{left} ago'})"
