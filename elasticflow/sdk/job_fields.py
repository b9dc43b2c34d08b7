"""Fields of a job as users write them, in the form of the specification. Pure.

Wrong values stay as they are: validation names them.
"""

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from elasticflow.shared.messages.job_spec import JobClass, MetricCondition, Scalar

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


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question about close names, to end an error with; "" if none is close."""
    close = difflib.get_close_matches(name, sorted(known), n=2)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def undeclared(of_class: str, declared: Iterable[str], given: Iterable[str], option: str) -> tuple[str, ...]:
    """A problem for each given hyperparameter that the class does not declare. option: that gives them."""
    known = sorted({*declared, "global_batch_size"})
    otherwise = f"; it declares {', '.join(known)}: add it to the `hyperparameters` of the class"
    return tuple(
        f"{option} {name}: {of_class} declares no such hyperparameter{did_you_mean(name, known) or otherwise}"
        for name in given
        if name not in known
    )


def metric_condition(metric: str, condition: Any) -> MetricCondition:
    """Raises InvalidJob."""
    try:
        comparison, value = condition
    except (TypeError, ValueError) as error:
        problem = f'metric_conditions.{metric}: must be like (">=", 0.97), not {condition!r:.80}'
        raise InvalidJob(problem) from error
    return MetricCondition(metric=metric, comparison=comparison, value=as_float(value))


def plain(value: Any) -> Any:
    """A number of numpy as Python's own."""
    is_numpy = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
    return value.item() if is_numpy else value


def as_float(value: Any) -> Any:
    """An integer as a float; one that is too large as infinity."""
    value = plain(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def class_of(name: Any) -> Any:
    """A class of jobs also as a command line spells it: best-effort."""
    return name.replace("-", "_") if isinstance(name, str) and not isinstance(name, JobClass) else name


def gpu_types_of(text: Any) -> tuple[Any, tuple[str, ...]]:
    """The first of the types in "A100,V100", and the others."""
    if not isinstance(text, str):
        return text, ()
    named = tuple(name.strip() for name in text.split(",") if name.strip())
    return "".join(named[:1]), named[1:]
