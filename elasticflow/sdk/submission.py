"""Turns a job, class, function or file of a user into what is submitted: a specification and its code."""

import copy
import importlib
import inspect
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from elasticflow.client.command_requests import Package
from elasticflow.client.pool_choice import ANY_DEADLINE_S
from elasticflow.errors import InputUnusable, did_you_mean
from elasticflow.sdk.job import ElasticJob
from elasticflow.sdk.packaging import PackagingFailed, package
from elasticflow.sdk.script import Script, TorchrunScript
from elasticflow.shared.messages.job_spec import SCRIPT, TORCHRUN, JobClass, JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """code: None if the nodes can import the class without it."""

    spec: JobSpec
    code: Package | None


def submission_of(job: ElasticJob, workdir: str | Path | None = None) -> Submission:
    """The job with its code, as `code_of`. Raises InvalidJob, PackagingFailed."""
    return with_code(job, code_of(job, workdir))


def code_of(job: ElasticJob, workdir: str | Path | None = None) -> Package | None:
    """The source file or package of its class, or the whole workdir. Raises PackagingFailed."""
    if not isinstance(job, Script):
        return package(type(job), workdir)
    if ".py" in job.target:
        return package(job.target, workdir)
    if workdir is not None:
        raise PackagingFailed(_needs_file(job.target))
    return None


def with_code(job: ElasticJob, code: Package | None) -> Submission:
    """Raises InvalidJob, naming each field that is wrong."""
    if code is None:
        return Submission(spec=job.spec(), code=None)
    spec = job.spec(training_function=code.training_function, code_digest=code.code_digest)
    if code.import_folder:
        spec = replace(spec, import_folder=code.import_folder)
    return Submission(spec=spec, code=code)


def quotable(job: ElasticJob) -> ElasticJob:
    """The same job with a deadline, which a specification needs and a quote ignores."""
    return copy.copy(job).set_job_class("slo").set_deadline(within=ANY_DEADLINE_S)


def profilable(job: ElasticJob, code: Package | None) -> Submission:
    """The job without a deadline: a profiling run has none, and needs no number of iterations. Raises InvalidJob."""
    if job.max_iterations is None:
        job = copy.copy(job).term_condition(max_iterations=1)
    submission = with_code(quotable(job), code)
    spec = replace(submission.spec, job_class=JobClass.BEST_EFFORT, deadline_s=None, deadline_in_s=None)
    return replace(submission, spec=spec)


def load(target: str, arguments: Sequence[str] = (), workdir: Path | None = None) -> tuple[ElasticJob, Package | None]:
    """The job that a command line names: "train.py", "train.py:Digits", or "package.module:Digits".

    A file is packaged, with its whole workdir if there is one; a module must be importable on the nodes. The user's
    module is imported in this process unless it is a script. arguments: of a script. Raises InputUnusable.
    """
    code = _packaged(target, workdir)
    training_function = code.training_function if code else target
    entry = training_function.partition(":")[2]
    if entry in (SCRIPT, TORCHRUN):
        return (Script if entry == SCRIPT else TorchrunScript)(target, *arguments), code
    if arguments:
        raise _not_loadable(target, f"not a script: unexpected arguments {shlex.join(arguments)}; use --set NAME=VALUE")
    if workdir is not None:
        sys.path.insert(0, str(workdir.resolve()))
    job_class = _found(target, code, "class", "train.py:Digits, or package.module:Digits")
    if not isinstance(job_class, type) or not issubclass(job_class, ElasticJob):
        raise _not_loadable(target, f"{entry} is not a subclass of ElasticJob")
    try:
        return job_class(), code
    except Exception as error:
        raise _not_loadable(target, f"creating a {job_class.__name__} failed: {_in_a_line(error)}") from error


def load_function(target: str) -> Callable[[Any], Any]:
    """The function that a command line names: "proteins.py:fold", or "package.module:fold".

    Its module is imported in this process. Raises InputUnusable.
    """
    code = _packaged(target) if ".py:" in target else None
    found = _found(target, code, "function", "proteins.py:fold, or package.module:fold")
    if not callable(found):
        raise _not_loadable(target, f"{target.rpartition(':')[2]} is not a function")
    return found


def _not_loadable(target: str, reason: str) -> InputUnusable:
    """target: as the user typed it."""
    return InputUnusable("not_loadable", f"cannot load {target}: {reason}")


def _packaged(target: str, workdir: Path | None = None) -> Package | None:
    """The code of a file; None for a module."""
    if ".py" not in target:
        if workdir is not None:
            raise _not_loadable(target, _needs_file(target))
        return None
    try:
        return package(target, workdir)
    except PackagingFailed as error:
        raise _not_loadable(target, str(error)) from None


_MOST_NAMED = 5  # classes or functions of a file


def _needs_file(target: str) -> str:
    return f"a workdir needs a file, and {target} is a module that the nodes import; name its file"


def _found(target: str, code: Package | None, kind: Literal["class", "function"], examples: str) -> Any:
    """What the target names, in its module, which is imported."""
    module_name, _, name = (code.training_function if code else target).partition(":")
    if not name or module_name.endswith(".py"):
        raise _not_loadable(target, f"name a file and a {kind}, like {examples}")
    if code is not None:
        sys.path.insert(0, str(_import_root(target, code)))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        reason = f"importing {module_name} failed: {_in_a_line(error)}{_advice(target, error)}"
        raise _not_loadable(target, reason) from error
    if not hasattr(module, name):
        there = _of_kind(module, kind)
        has = f"; it has {', '.join(there[:_MOST_NAMED])}" if there else ""
        raise _not_loadable(target, f"{module_name} has no {kind} {name}{did_you_mean(name, there) or has}")
    return getattr(module, name)


def _of_kind(module: ModuleType, kind: Literal["class", "function"]) -> list[str]:
    """The public names of what is defined in this module."""
    is_of_kind = inspect.isclass if kind == "class" else inspect.isfunction
    there = inspect.getmembers(module, is_of_kind)
    return [name for name, value in there if not name.startswith("_") and value.__module__ == module.__name__]


def _advice(target: str, error: Exception) -> str:
    """What to do where the missing module is a file here, or above a folder that lacks __init__.py."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    if ".py" not in target:
        module_name, _, name = target.partition(":")
        file = Path(*module_name.split(".")).with_suffix(".py")
        return f"; Python finds no such module here: name its file, {file}:{name}" if file.is_file() else ""
    name = error.name.partition(".")[0]
    inner = Path(target.rpartition(".py")[0]).resolve().parent
    while (inner / "__init__.py").is_file():
        inner = inner.parent
    for outer in inner.parents:
        if (outer / name).is_dir() or (outer / f"{name}.py").is_file():
            return f"; {name} is in {outer}: to import it, put __init__.py into {inner}"
        inner = outer
    return ""


def _import_root(target: str, code: Package) -> Path:
    """The folder from which the packaged module is imported: as many levels up as its name has parts."""
    file = Path(target.rpartition(".py")[0] + ".py").resolve()
    depth = code.training_function.partition(":")[0].count(".")
    return file.parents[depth] if file.stem != "__init__" else file.parents[depth + 1]


def _of_the_import(filename: str) -> bool:
    return filename.startswith("<frozen importlib") or filename in (__file__, importlib.__file__)


def _in_a_line(error: BaseException) -> str:
    """The error, and where in the user's code it was raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _of_the_import(f.filename)]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}, line {error.lineno})"
    return f"{type(error).__name__}: {error}{where}".replace("\n", " ")
