"""Fields of a job as users write them, in the form of the specification. Pure.

Wrong values stay as they are: validation names them.
"""

import difflib
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Literal

from elasticflow.errors import InvalidJob, did_you_mean
from elasticflow.shared.messages.codec import validate
from elasticflow.shared.messages.commands import CancelJob, SubmitJob
from elasticflow.shared.messages.gpus import range_problem
from elasticflow.shared.messages.job_environment import DATA_NAMES_OF_OURS, DATA_VARIABLE, local_path
from elasticflow.shared.messages.job_spec import JobClass, JobSpec, MetricCondition, gang_problems

Condition = tuple[Literal["<=", ">="], float]


def undeclared(of_class: str, declared: Iterable[str], given: Iterable[str], option: str) -> tuple[str, ...]:
    """A problem for each given hyperparameter that the class does not declare. option: that gives them."""
    known = sorted({*declared, "global_batch_size"})
    otherwise = f"; it declares {', '.join(known)}: add it to the `hyperparameters` of the class"
    return tuple(
        f"{option} {name}: {of_class} declares no such hyperparameter{did_you_mean(name, known) or otherwise}"
        for name in given
        if name not in known
    )


_MISTYPED = 0.9  # similarity of names; a letter more or less


def mistyped_declarations(of: type, base: type) -> tuple[str, ...]:
    """A problem for each attribute of the job's classes whose name is nearly one that `base` declares."""
    known = [name for name in dir(base) if not name.startswith("_")]
    classes = of.__mro__[: of.__mro__.index(base)]
    own = dict.fromkeys(
        name for each in classes for name in vars(each) if not name.startswith("_") and name not in known
    )
    meant = ((name, difflib.get_close_matches(name, known, n=1, cutoff=_MISTYPED)) for name in own)
    return tuple(
        f"{of.__name__}.{name}: a job has no such declaration; did you mean {close[0]}? Give an attribute of your own "
        "another name"
        for name, close in meant
        if close
    )


_OF_OTHERS = "Call it in one of these, or give a method of your own another name"
_OF_SAMPLERS = (
    "A class has no sampler: let its data set draw the samples in set_epoch(epoch), as docs/explanation/data.md says"
)


def unknown_init_methods(of: type, base: type) -> tuple[str, ...]:
    """A problem for each method init_* of the job's classes that `base` does not have and that their code does not
    call."""
    known = [name for name in dir(base) if name.startswith("init_")]
    own = [
        (name, member.__code__)
        for each in of.__mro__[: of.__mro__.index(base)]
        for name, member in vars(each).items()
        if isinstance(member, FunctionType)
    ]
    named = set[str]().union(*(_names_in(code) for _, code in own))
    unknown = dict.fromkeys(name for name, _ in own if name.startswith("init_") and name not in {*known, *named})
    return tuple(
        f"{of.__name__}.{name}: nobody calls it; a job calls {', '.join(known)}"
        f"{did_you_mean(name, known) or '.'} {_OF_SAMPLERS if 'sampl' in name else _OF_OTHERS}"
        for name in unknown
    )


def _names_in(code: CodeType) -> set[str]:
    within = (_names_in(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*within)


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


# --- job data ------------------------------------------------------------------------------------------
# Data of a job: the URI as its user writes it, and the path at which its processes find it.


def uri_of(data: str | Path) -> str:
    """A path becomes a file:// URI, which names the same path on each node; a URI stays as it is."""
    text = str(data)
    return text if "://" in text else Path(os.path.abspath(Path(text).expanduser())).as_uri()


def absent_data(data: Mapping[str, str | Path]) -> list[str]:
    """The data, by name, whose paths are not on this machine: "train is not at /data/train"."""
    paths = {name: local_path(uri_of(uri)) for name, uri in data.items()}
    return [f"{name} is not at {path}" for name, path in paths.items() if path is not None and not Path(path).exists()]


def data_path(name: str) -> Path:
    """The file or folder of a job's data of this name, for reading in the job's processes. Raises KeyError.

    Code that does not import elasticflow finds it in the variable EF_DATA_<name>.
    """
    if name not in DATA_NAMES_OF_OURS and (path := os.environ.get(f"{DATA_VARIABLE}{name}")):
        return Path(path)
    known = sorted(
        found
        for variable in os.environ
        if variable.startswith(DATA_VARIABLE)
        and (found := variable.removeprefix(DATA_VARIABLE)) not in DATA_NAMES_OF_OURS
    )
    has = f"it has {', '.join(known)}" if known else "it has none, or this is no process of a job"
    raise KeyError(f"this job has no data {name!r}: {has}; submit it with --data {name}=URI, or set_data")


# --- Problems of a job that are found before it is submitted: one line for each field ------------------

_NEEDED = {
    "global_batch_size": "a job needs one: set_hyperparameter(global_batch_size=...), or --batch",
    "max_iterations": "a job needs a number: term_condition(max_iterations=...), or --iterations",
}


def problems_of(spec: JobSpec, *, has_deadline: bool) -> list[str]:
    """The problems of an unchecked specification; [] if it can be submitted."""
    missing = {field: how for field, how in _NEEDED.items() if getattr(spec, field) is None}
    wrong = validate(SubmitJob(job_id="job", tenant="tenant", spec=spec))
    named = [problem.removeprefix("spec.") for problem in wrong]
    problems = [problem for problem in named if problem.partition(":")[0] not in missing]
    problems += [f"{field}: {how}" for field, how in missing.items()]
    needs_none = spec.job_class in (JobClass.BEST_EFFORT, JobClass.PADDING)
    if has_deadline and needs_none:
        problems.append(f"deadline: a {spec.job_class} job has none; the class soft tries to meet one")
    if not has_deadline and not needs_none:
        problems.append(f"deadline: a job of class {spec.job_class} needs one: set_deadline(...), or --deadline")
    is_range = not any(problem.startswith(("min_gpus", "max_gpus")) for problem in problems)
    if is_range and (empty := range_problem(spec.min_gpus, spec.max_gpus)) is not None:
        problems.append(f"min_gpus: {empty}")
    if not any(problem.startswith(("min_gpus", "max_gpus", "gpus_per_replica")) for problem in problems):
        problems += gang_problems(spec)
    return problems


def problems_of_names(*, job_id: str, tenant: str) -> tuple[str, ...]:
    """The problems of a job's id and tenant; "" is replaced later."""
    return validate(CancelJob(job_id=job_id or "job", tenant=tenant or "tenant"))
