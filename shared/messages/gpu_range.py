"""On how many GPUs a job may run: powers of two, from one bound to another. Nothing here knows what is fast or free.

A user need not give a range. It is for models that do not run, or do not converge, on other numbers, and for
operators, who may bound a job for a while.
"""

from dataclasses import dataclass
from typing import NamedTuple


class GpuRange(NamedTuple):
    """From `least` to `most` GPUs, both of them powers of two; most None: as many as there are."""

    least: int = 1
    most: int | None = None

    @staticmethod
    def of(min_gpus: int, max_gpus: int | None) -> "GpuRange":
        """The sizes that lie between: 3 to 9 are 4 and 8; 5 to 7 are none, for which least is more than most."""
        least = 1 << (min_gpus - 1).bit_length()
        return GpuRange(least, None if max_gpus is None else size_up_to(max_gpus))

    @property
    def is_empty(self) -> bool:
        return self.most is not None and self.most < self.least

    def holds(self, num_gpus: int) -> bool:
        return self.least <= num_gpus and (self.most is None or num_gpus <= self.most)

    def contains(self, other: "GpuRange") -> bool:
        return self.and_within(other) == other

    def and_within(self, other: "GpuRange") -> "GpuRange":
        """What both have; perhaps nothing."""
        bounds = [most for most in (self.most, other.most) if most is not None]
        return GpuRange(max(self.least, other.least), min(bounds, default=None))

    def part_of(self, profile_key: str) -> str:
        """The key of what a profile has in this range: "resnet50/b256[2..8]"; all of it has the plain key."""
        if self == ANY_NUMBER:
            return profile_key
        return f"{profile_key}[{self.least}..{'' if self.most is None else self.most}]"

    def __str__(self) -> str:
        """As "4", "2..8", "2.." or "..8"."""
        if self.least == self.most:
            return str(self.least)
        return f"{self.least if self.least > 1 else ''}..{'' if self.most is None else self.most}"


ANY_NUMBER = GpuRange()


def size_up_to(num_gpus: int) -> int:
    """The largest size that a job is given, up to so many: survivors of a loss may for a moment be any number."""
    return 1 << (num_gpus.bit_length() - 1)


def range_problem(min_gpus: int, max_gpus: int | None) -> str | None:
    """What is wrong with a range that holds no size, of which the fields are named already; None if it holds one."""
    if not GpuRange.of(min_gpus, max_gpus).is_empty:
        return None
    if max_gpus is not None and max_gpus < min_gpus:
        return f"{min_gpus} is more than max_gpus, {max_gpus}"
    return f"jobs get 1, 2, 4, 8, ... GPUs, and none of these lies from {min_gpus} to {max_gpus}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBound:
    """An operator's bound on one job, beside the range that it has of its own.

    until_s: it ends by itself then. yields_to: the job whose promise is at risk, so that it ends now.
    """

    min_gpus: int | None
    max_gpus: int | None
    until_s: float | None
    yields_to: str = ""

    @property
    def gpu_range(self) -> GpuRange:
        return GpuRange.of(self.min_gpus or 1, self.max_gpus)
