"""Ratios to peers of the same run, the recorded ones, and what a comparison says. Nothing is measured here."""

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

WORSE = 1.2  # times the recorded ratio


class Beside(NamedTuple):
    """One measurement and its peer, taken at nearly the same time. Both are costs: less is better."""

    what: str
    ours_s: float
    peer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The median ratio of ours to the peer over the repeats, the least and the greatest; median seconds of both."""

    ratio: float
    least: float
    greatest: float
    ours_s: float
    peer_s: float

    @classmethod
    def of(cls, repeats: Iterable[Beside]) -> "Ratio":
        ours, peers = zip(*((repeat.ours_s, repeat.peer_s) for repeat in repeats), strict=True)
        ratios = [mine / peer for mine, peer in zip(ours, peers, strict=True)]
        return cls(
            ratio=statistics.median(ratios),
            least=min(ratios),
            greatest=max(ratios),
            ours_s=statistics.median(ours),
            peer_s=statistics.median(peers),
        )


Ratios = Mapping[str, Ratio]  # by what was measured


def ratios_of(repeats: Iterable[Beside]) -> dict[str, Ratio]:
    """The ratios of a part, in the order of its first repeat."""
    by_what: dict[str, list[Beside]] = {}
    for repeat in repeats:
        by_what.setdefault(repeat.what, []).append(repeat)
    return {what: Ratio.of(of_what) for what, of_what in by_what.items()}


def lower(first: Ratios, second: Ratios) -> dict[str, Ratio]:
    """The lower ratios of two runs of a part: other work makes a ratio greater, and rarely does so twice."""
    return {what: min(first[what], second[what], key=lambda ratio: ratio.ratio) for what in first}


class Verdict(StrEnum):
    """The verdict on a ratio beside its recorded one."""

    AS_RECORDED = "as recorded"
    WORSE = "worse"
    BETTER = "better"
    NOT_RECORDED = "not recorded"
    NOT_MEASURED = "not measured"  # recorded, but its part no longer measures it

    @property
    def fails(self) -> bool:
        return self in (Verdict.WORSE, Verdict.NOT_MEASURED)


class Compared(NamedTuple):
    """change: the ratio over the recorded one, 1 if they are equal."""

    what: str
    measured: Ratio | None
    recorded: Ratio | None

    @property
    def change(self) -> float | None:
        return self.measured.ratio / self.recorded.ratio if self.measured and self.recorded else None

    @property
    def verdict(self) -> Verdict:
        if self.change is None:
            return Verdict.NOT_RECORDED if self.measured else Verdict.NOT_MEASURED
        if self.change > WORSE:
            return Verdict.WORSE
        return Verdict.BETTER if self.change < 1 / WORSE else Verdict.AS_RECORDED


def compared(measured: Ratios, recorded: Ratios) -> Iterator[Compared]:
    """The comparisons of one part: what was measured, then what only the record has."""
    for what in dict.fromkeys((*measured, *recorded)):
        yield Compared(what, measured.get(what), recorded.get(what))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The ratios of one part, and where they were measured. commit: ends in -dirty if files had changed."""

    date: str
    commit: str
    machine: str
    ratios: Ratios

    def as_json(self) -> dict[str, Any]:
        ratios = {what: as_json(ratio) for what, ratio in self.ratios.items()}
        return {"date": self.date, "commit": self.commit, "machine": self.machine, "ratios": ratios}

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> "Recorded":
        ratios = {what: Ratio(**ratio) for what, ratio in known["ratios"].items()}
        return cls(date=known["date"], commit=known["commit"], machine=known["machine"], ratios=ratios)


def as_json(ratio: Ratio) -> dict[str, float]:
    """The ratio with four digits: more would only be noise."""
    names = ("ratio", "least", "greatest", "ours_s", "peer_s")
    return {name: float(f"{getattr(ratio, name):.4g}") for name in names}


def read_recorded(file: Path) -> dict[str, Recorded]:
    """The recorded ratios by part; empty if nothing was recorded yet."""
    if not file.exists():
        return {}
    return {part: Recorded.from_json(known) for part, known in json.loads(file.read_text()).items()}


def record(file: Path, parts: Mapping[str, Recorded]) -> None:
    """Replace the records of these parts, and keep the others."""
    known = {**read_recorded(file), **parts}
    file.write_text(json.dumps({part: known[part].as_json() for part in sorted(known)}, indent=2) + "\n")
