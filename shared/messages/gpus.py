"""GPUs: how many a job holds over time, on how many it may run, and how many of each type there are."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from annotated_types import Len
from pydantic import AfterValidator

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.limits import MAX_GPUS, Index, TimeS, Token

# --- share schedule -----------------------------------------------------------------------------------
# GPUs, and the number of GPUs of one job over time. A GPU is one slot of a node: a device, or a share of a CPU.


class GpuId(NamedTuple):
    """One GPU: its node, and its number there, from 0."""

    node_id: Token
    gpu_index: Index


MAX_NAMED_GPUS = 4096
NamedGpus = Annotated[tuple[GpuId, ...], Len(max_length=MAX_NAMED_GPUS)]


class ShareSegment(NamedTuple):
    """A job holds num_gpus GPUs from start_s until end_s."""

    start_s: float
    end_s: float
    num_gpus: int


def _in_threes(numbers: tuple[float, ...]) -> tuple[float, ...]:
    if len(numbers) % 3:
        raise ValueError(f"must be start_s, end_s, num_gpus of each segment, not {len(numbers)} numbers")
    return numbers


# start_s, end_s, num_gpus of each segment, one after another. Flat, because one decision may carry thousands of
# schedules: the message is a fifth as large as with a map for each segment.
ShareSchedule = Annotated[tuple[TimeS, ...], AfterValidator(_in_threes)]


def segments(schedule: ShareSchedule) -> Iterator[ShareSegment]:
    """The segments of a schedule, in order of time."""
    numbers = iter(schedule)
    for start_s, end_s, num_gpus in zip(numbers, numbers, numbers, strict=True):
        yield ShareSegment(start_s, end_s, int(num_gpus))


# --- gpu limits ---------------------------------------------------------------------------------------
# The numbers of GPUs on which a job may run: powers of two within the range of the user and the limits of an operator.
#
# Most jobs need no range. It is for models that do not run, or do not converge, on other numbers.


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


def gang_range_problems(gpus_per_replica: int, min_gpus: int, max_gpus: int | None) -> list[str]:
    """The ends of a range that are no multiples of the GPUs of a replica, each as a sentence; 1 GPU at least means no
    end."""
    ends = {"min_gpus": min_gpus if min_gpus > 1 else None, "max_gpus": max_gpus}
    problems = list[str]()
    for name, num_gpus in ends.items():
        if num_gpus is not None and num_gpus % gpus_per_replica:
            above = (num_gpus // gpus_per_replica + 1) * gpus_per_replica
            below = above - gpus_per_replica
            choose = f"choose {below} or {above}" if below else f"choose {above}"
            problems.append(
                f"{name}: {num_gpus} is no multiple of gpus_per_replica, {gpus_per_replica}: {choose}, or leave it out"
            )
    return problems


def are_whole_gangs(node_ids: Sequence[str], gpus_per_replica: int) -> bool:
    """Whether the GPUs of each replica are on one node. node_ids: of all GPUs, in rank order."""
    starts = range(0, len(node_ids), gpus_per_replica)
    gangs = (node_ids[start : start + gpus_per_replica] for start in starts)
    return len(node_ids) % gpus_per_replica == 0 and all(len(set(gang)) == 1 for gang in gangs)


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


# --- gpus by type -------------------------------------------------------------------------------------
# Numbers of GPUs by type, as users write them: `4xV100,8xP100,16xK80`.

_GPUS_OF_TYPE = re.compile(r"([0-9]{1,9})x([A-Za-z0-9][A-Za-z0-9._-]{0,63})")
_EXPECTED = "give each type once, as NUMBERxTYPE, for example 4xV100,8xP100,16xK80"


def gpus_by_type(text: str, name: str) -> dict[str, int]:
    """The numbers that `text` gives, in its order. BadSettings names the setting and the part that is wrong."""
    counts = dict[str, int]()
    for part in text.split(","):
        match = _GPUS_OF_TYPE.fullmatch(part.strip())
        if match is None:
            raise BadSettings((f"{name} {text!r}: cannot read {part.strip()!r}; {_EXPECTED}",))
        count, gpu_type = int(match[1]), match[2]
        if gpu_type in counts:
            raise BadSettings((f"{name} {text!r}: type {gpu_type} appears twice; {_EXPECTED}",))
        if not 1 <= count <= MAX_GPUS:
            raise BadSettings((f"{name} {text!r}: the number of {gpu_type} must be 1 to {MAX_GPUS}",))
        counts[gpu_type] = count
    return counts
