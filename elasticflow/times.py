"""Times as users write and read them: durations, deadlines, times of day."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from elasticflow.shared.messages.limits import MAX_TIME_S

Duration = timedelta | float | str  # a float is seconds; a text is like "90s", "15m", "2h30m" or "1d"
Moment = datetime | float  # a datetime without a time zone is local time; a float is seconds since 1970

_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_YEAR_S = 365.25 * 86_400.0
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Either absolute (`deadline`), relative to the decision (`within`), or neither."""

    deadline: datetime | None = None
    within: float | None = None  # seconds


def parse_deadline(text: str) -> Deadline:
    """A duration ("90s", "1h30m") or an ISO time, local unless it names a zone. Raises ValueError."""
    if _DURATION.fullmatch(text):
        return Deadline(within=seconds_of(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time; write a duration (90s, 15m, 2h30m, 1d) or a time (2026-05-01T18:00)"
        ) from None
    timestamp_of(moment)
    return Deadline(deadline=moment)


def seconds_of(duration: Duration) -> float:
    """Raises ValueError for a text that is not a duration."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if not isinstance(duration, str):
        return float(duration)
    if not _DURATION.fullmatch(duration):
        raise ValueError(f"{duration!r} is not a duration; write 90s, 15m, 2h30m or 1d")
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(duration))
    if seconds > MAX_TIME_S:
        raise ValueError(f"{duration:.40} is a duration of thousands of years; write 90s, 15m, 2h30m or 1d")
    return seconds


def timestamp_of(moment: Moment) -> float:
    """Seconds since 1970. Raises ValueError for a datetime of another time."""
    if not isinstance(moment, datetime):
        return float(moment)
    try:
        at_s = moment.timestamp()
    except (ValueError, OverflowError):  # year 1 in a time zone east of Greenwich, and year 9999 in one west of it
        at_s = -1.0
    if not 0.0 <= at_s <= MAX_TIME_S:
        what = f"{moment.isoformat(' ')} is before 1970, or thousands of years away"
        raise ValueError(f"{what}; write a time like 2026-05-01T18:00")
    return at_s


def duration_in_words(seconds: float) -> str:
    """The two largest units: "4m 10s", "2h 05m", "3d 04h"; "12.4s" below a minute, "6.9 years" above two."""
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if seconds < 59.95:
        return f"{sign}{seconds:.1f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{sign}{whole // 60}m {whole % 60:02d}s"
    if whole < 86_400:
        return f"{sign}{whole // 3600}h {whole % 3600 // 60:02d}m"
    if whole >= 2 * _YEAR_S:
        return f"{sign}{whole / _YEAR_S:.1f} years"
    return f"{sign}{whole // 86_400}d {whole % 86_400 // 3600:02d}h"


def clock_time(at_s: float, *, now_s: float | None = None) -> str:
    """Local time of day, with the date if now_s falls on another day."""
    moment = datetime.fromtimestamp(at_s, UTC).astimezone()
    if now_s is not None and datetime.fromtimestamp(now_s, UTC).astimezone().date() != moment.date():
        return moment.strftime("%Y-%m-%d %H:%M:%S")
    return moment.strftime("%H:%M:%S")


def moment_in_words(at_s: float, now_s: float) -> str:
    """Like "15:04:14 (in 21.2s)" or "15:04:14 (21.2s ago)"."""
    left = duration_in_words(abs(at_s - now_s))
    return f"{clock_time(at_s, now_s=now_s)} ({f'in {left}' if at_s > now_s else f'{left} ago'})"
