"""The numbers of GPUs on which a job may run: powers of two within the range of the user and the limits of an operator.

Most jobs need no range. It is for models that do not run, or do not converge, on other numbers.
"""

from dataclasses import dataclass
from typing import NamedTuple

from elasticflow.shared.messages.share_schedule import GpuId


class GpuRange(NamedTuple):
    """A range from `least` to `most` GPUs, both powers of two; most None: no upper limit."""

    least: int = 1
    most: int | None = None

    @staticmethod
    def of(min_gpus: int, max_gpus: int | None) -> "GpuRange":
        """The powers of two from min_gpus to max_gpus: 3 to 9 gives 4 and 8. Empty for 5 to 7: least exceeds most."""
        least = 1 << (min_gpus - 1).bit_length()
        return GpuRange(least, None if max_gpus is None else largest_size_up_to(max_gpus))

    @property
    def is_empty(self) -> bool:
        return self.most is not None and self.most < self.least

    def allows(self, num_gpus: int) -> bool:
        return self.least <= num_gpus and (self.most is None or num_gpus <= self.most)

    def contains(self, other: "GpuRange") -> bool:
        return self.intersection(other) == other

    def intersection(self, other: "GpuRange") -> "GpuRange":
        """The sizes in both ranges; it may be empty."""
        upper = [most for most in (self.most, other.most) if most is not None]
        return GpuRange(max(self.least, other.least), min(upper, default=None))

    def profile_key(self, measured_key: str) -> str:
        """The key of the profile's part in this range: "resnet50/b256[2..8]"; the unlimited range has the plain key."""
        if self == ANY_NUMBER:
            return measured_key
        return f"{measured_key}[{self.least}..{'' if self.most is None else self.most}]"

    def __str__(self) -> str:
        """The range as "4", "2..8", "2.." or "..8"."""
        if self.least == self.most:
            return str(self.least)
        return f"{self.least if self.least > 1 else ''}..{'' if self.most is None else self.most}"

    @property
    def in_words(self) -> str:
        """The range as "1 GPU" or "2..8 GPUs"."""
        return f"{self} GPU{'' if self.most == 1 else 's'}"


ANY_NUMBER = GpuRange()


def largest_size_up_to(num_gpus: int) -> int:
    """The largest power of two up to num_gpus. Survivors of a loss may for a moment be any number."""
    return 1 << (num_gpus.bit_length() - 1)


def range_problem(min_gpus: int, max_gpus: int | None) -> str | None:
    """Why the range contains no size, as the end of a sentence that names min_gpus; None if it contains one."""
    if not GpuRange.of(min_gpus, max_gpus).is_empty:
        return None
    if max_gpus is not None and max_gpus < min_gpus:
        return f"{min_gpus} is more than the most, {max_gpus}"
    below = largest_size_up_to(min_gpus)
    named = str(min_gpus) if min_gpus == max_gpus else f"{min_gpus}..{max_gpus}"
    return f"{named} is none of the numbers of GPUs that a job gets, 1, 2, 4, 8, ...: choose {below} or {2 * below}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimits:
    """An operator's limits for one job, in addition to the range in its spec.

    until_s: when they expire; None: never. yields_to: the job whose promise is at risk, which ends them now.
    without_gpus: those that the job has given up.
    """

    min_gpus: int | None
    max_gpus: int | None
    until_s: float | None
    yields_to: str = ""
    without_gpus: tuple[GpuId, ...] = ()

    @property
    def gpu_range(self) -> GpuRange:
        return GpuRange.of(self.min_gpus or 1, self.max_gpus)


def rounded_in_words(min_gpus: int | None, max_gpus: int | None) -> str:
    """What numbers that are no sizes of jobs mean, such as "3 GPUs mean 4: jobs get 1, 2, 4, 8, ..."; "" for others."""
    meant = GpuRange.of(min_gpus or 1, max_gpus)
    named = ((min_gpus, meant.least), (max_gpus, meant.most))
    other = [f"{asked} GPUs mean {size}" for asked, size in named if asked is not None and asked != size]
    return f"{' and '.join(other)}: jobs get 1, 2, 4, 8, ... GPUs" if other else ""
