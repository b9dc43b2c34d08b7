"""Results of the synchronous API, which a notebook shows as a table and `print` as lines."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Self

from elasticflow.history.job_table import jobs_table
from elasticflow.history.pool_views import JobView
from elasticflow.history.tables import as_html, as_text, table
from elasticflow.sdk.times import moment_in_words
from elasticflow.shared.messages.events import DeadlineQuoted


class JobViews(tuple[JobView, ...]):
    """Jobs of a pool, in the order of their decisions. now_s: when they were looked at."""

    now_s: float

    def __new__(cls, views: Iterable[JobView], now_s: float) -> Self:
        made = super().__new__(cls, views)
        made.now_s = now_s
        return made

    def __getnewargs__(self) -> tuple[tuple[JobView, ...], float]:
        return tuple(self), self.now_s

    def __str__(self) -> str:
        return as_text(jobs_table(self, self.now_s, all_columns=True)) if self else "no jobs"

    def _repr_html_(self) -> str:
        return as_html(jobs_table(self, self.now_s, all_columns=True) if self else "no jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote(DeadlineQuoted):
    """A `DeadlineQuoted` that a notebook shows as a table."""

    @classmethod
    def of(cls, quoted: DeadlineQuoted) -> "Quote":
        return cls(**{field.name: getattr(quoted, field.name) for field in fields(quoted)})

    def __str__(self) -> str:
        if self.earliest_deadline_s is None:
            return f"no quote: {self.explanation}"
        return f"earliest deadline {moment_in_words(math.ceil(self.earliest_deadline_s), self.at_s)}"

    def _repr_html_(self) -> str:
        earliest_s = self.earliest_deadline_s
        rows = [
            ("EARLIEST DEADLINE", "-" if earliest_s is None else moment_in_words(math.ceil(earliest_s), self.at_s)),
            ("GPU-SECONDS", "-" if self.gpu_seconds is None else f"{self.gpu_seconds:.0f}"),
            ("GPU TYPE", self.gpu_type or "-"),
            *([("WHY", self.explanation)] if self.explanation else []),
        ]
        return as_html(table("QUOTE", "", rows=rows))
