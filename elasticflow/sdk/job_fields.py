"""Fields of a job as users write them, in the form of the specification. Pure.

Wrong values stay as they are: validation names them.
"""

import difflib
from collections.abc import Sequence
from typing import Any, Literal

from elasticflow.shared.messages.job_spec import MetricCondition, Scalar

Condition = tuple[Literal["<=", ">="], float]


class InvalidJob(ValueError):
    """The job cannot be submitted. problems: one line for each wrong field."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def nearest_name(name: str, known: Sequence[str]) -> str:
    """The known name that a user may have meant."""
    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]


def value_in_words(value: Scalar) -> str:
    """As a command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def metric_condition(metric: str, condition: Any) -> MetricCondition:
    """Raises InvalidJob."""
    try:
        comparison, value = condition
    except (TypeError, ValueError) as error:
        problem = f'metric_conditions.{metric}: must be like (">=", 0.97), not {condition!r:.80}'
        raise InvalidJob(problem) from error
    return MetricCondition(metric=metric, comparison=comparison, value=as_float(value))


def as_float(value: Any) -> Any:
    """An integer as a float."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def gpu_types_of(text: Any) -> tuple[Any, tuple[str, ...]]:
    """The first of the types in "A100,V100", and the others."""
    if not isinstance(text, str):
        return text, ()
    named = tuple(name.strip() for name in text.split(",") if name.strip())
    return "".join(named[:1]), named[1:]
