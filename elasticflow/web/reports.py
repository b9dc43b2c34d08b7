"""The reports of one job over time, as numbers in arrays: a tenth of the memory of objects. Pure."""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isnan, nan

MAX_REPORTS = 2_000  # of one job; beyond, every second one is dropped
_NUMBERS = 6  # of each report, one after another


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The progress of a job at one time. margin_s: deadline less expected finish, as it was then."""

    sequence: int
    at_s: float
    iteration: int
    num_gpus: int
    iterations_per_s: float | None
    margin_s: float | None
    metrics: Mapping[str, float]


class Reports:
    """In the order of their messages. No number of a message is NaN, so that NaN stands for None."""

    def __init__(self) -> None:
        self._numbers = array("d")
        self._metrics: dict[str, array[float]] = {}  # by name, one number for each report

    def __len__(self) -> int:
        return len(self._numbers) // _NUMBERS

    def __iter__(self) -> Iterator[Report]:
        for index in range(len(self)):
            first = index * _NUMBERS
            sequence, at_s, iteration, num_gpus, iterations_per_s, margin_s = self._numbers[first : first + _NUMBERS]
            yield Report(
                sequence=int(sequence),
                at_s=at_s,
                iteration=int(iteration),
                num_gpus=int(num_gpus),
                iterations_per_s=None if isnan(iterations_per_s) else iterations_per_s,
                margin_s=None if isnan(margin_s) else margin_s,
                metrics={name: value for name, each in self._metrics.items() if not isnan(value := each[index])},
            )

    def append(self, report: Report) -> None:
        if len(self) >= MAX_REPORTS:
            kept = list(self)[1::2]
            self._numbers, self._metrics = array("d"), {}
            for each in kept:
                self.append(each)
        count = len(self)
        optional = (nan if number is None else number for number in (report.iterations_per_s, report.margin_s))
        self._numbers.extend((report.sequence, report.at_s, report.iteration, report.num_gpus, *optional))
        for name in report.metrics:
            if name not in self._metrics:
                self._metrics[name] = array("d", [nan] * count)
        for name, numbers in self._metrics.items():
            numbers.append(report.metrics.get(name, nan))
