"""Sweeps: one job for each combination of hyperparameter values. Pure."""

import copy
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from elasticflow.errors import InvalidJob, did_you_mean
from elasticflow.history.formatting import value_in_words
from elasticflow.sdk.job import ElasticJob
from elasticflow.sdk.job_fields import undeclared
from elasticflow.sdk.script import Script
from elasticflow.shared.messages.job_spec import JobSpec, Scalar

MAX_COMBINATIONS = 1_000
MAX_NAME_LENGTH = 64  # of a job's id

Combination = Mapping[str, Scalar]


def combinations(sweep: Mapping[str, Sequence[Scalar]]) -> tuple[Combination, ...]:
    """Each choice of one value for each name; the last name varies fastest. Raises InvalidJob if they are too many."""
    count = math.prod(map(len, sweep.values()))
    if count > MAX_COMBINATIONS:
        sizes = " x ".join(str(len(values)) for values in sweep.values())
        raise InvalidJob(f"sweep: {sizes} = {count} combinations are more than {MAX_COMBINATIONS}; sweep fewer values")
    return tuple(dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values()))


def job_of(job: ElasticJob, combination: Combination) -> ElasticJob:
    """The job with these hyperparameters. A script gets its settings as arguments: "{lr}" in one stands for the value.

    Raises InvalidJob, naming each unknown hyperparameter and the close known ones.
    """
    in_arguments = _placeholders(job)
    if problems := _unknown(job, in_arguments, combination):
        raise InvalidJob(*problems)
    made = copy.copy(job)
    others = {name: value for name, value in combination.items() if name not in in_arguments}
    made.hyperparameters = {**job.hyperparameters, **others}
    if isinstance(made, Script):
        made.arguments = tuple(_filled(argument, combination) for argument in made.arguments)
    return made


def job_ids(base: str, swept: Sequence[Combination]) -> tuple[str, ...]:
    """Their names, each different: "digits-lr-0_1", because an id has letters, digits, _ and - only.

    A name that is too long, or that another combination has, ends in the number of its combination.
    """
    named: dict[str, None] = {}
    for number, combination in enumerate(swept, start=1):
        words = "-".join(f"{name}-{value_in_words(value)}" for name, value in combination.items())
        job_id = re.sub(r"[^A-Za-z0-9_-]", "_", f"{base}-{words}")
        if len(job_id) > MAX_NAME_LENGTH or job_id in named:
            job_id = f"{job_id[: MAX_NAME_LENGTH - 6]}--{number}"
        named[job_id] = None
    return tuple(named)


def in_sweep(spec: JobSpec, sweep: str, combination: Combination, now_s: float) -> JobSpec:
    """One job of a sweep: it names its values, and has the deadline of all others, whenever each is decided on."""
    spec = replace(spec, sweep=sweep, swept=combination)
    if spec.deadline_in_s is None:
        return spec
    return replace(spec, deadline_s=now_s + spec.deadline_in_s, deadline_in_s=None)


def _placeholders(job: ElasticJob) -> set[str]:
    """The names in braces among the arguments of a script."""
    arguments = job.arguments if isinstance(job, Script) else ()
    return {name for argument in arguments for name in re.findall(r"\{([A-Za-z_]\w*)\}", argument)}


def _filled(argument: str, combination: Combination) -> str:
    for name, value in combination.items():
        argument = argument.replace(f"{{{name}}}", value_in_words(value))
    return argument


def _unknown(job: ElasticJob, in_arguments: set[str], combination: Combination) -> tuple[str, ...]:
    """A problem for each name that neither the job nor an argument of the script has."""
    if not isinstance(job, Script):
        return undeclared(type(job).__name__, job.hyperparameters, combination, "--sweep")
    known = {*job.hyperparameters, "global_batch_size", *in_arguments}
    return tuple(
        f"--sweep {name}: no argument of the script contains {{{name}}}; write it where the value belongs, as in "
        f"-- --{name} {{{name}}}{did_you_mean(name, known)}"
        for name in combination
        if name not in known
    )
