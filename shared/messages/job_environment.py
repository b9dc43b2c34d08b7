"""What a job asks for beside its code: variables of its workers, secrets, packages and data. Pure.

All of them are in the ledger, which every user of a pool reads; secrets only as executors can open them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import unquote

from annotated_types import Len
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from elasticflow.shared.messages.limits import (
    DataName,
    DataUri,
    PythonVersion,
    RequirementLine,
    SealedText,
    VariableName,
    VariableValue,
)

MAX_VARIABLES = 64
MAX_VARIABLES_BYTES = 16 * 1024  # of all names and values of a job
MAX_SECRETS_BYTES = 32 * 1024  # sealed, of a job
_LEAST_MASKED = 4  # characters: a shorter secret is a part of many words
_LEAST_MASKED_LINE = 8  # of a secret with several lines
MAX_REQUIREMENTS = 256
MAX_REQUIREMENTS_BYTES = 16 * 1024
MAX_DATA = 64
MAX_DATA_BYTES = 16 * 1024  # of all names and URIs of a job
DATA_VARIABLE = "EF_DATA_"  # begins the variable with the path of some data, for users' code
SCRIPT_PROCESS_VARIABLE = "EF_SCRIPT_PROCESS"  # the process that runs an elastic script; its children have it, too
DATA_NAMES_OF_OURS = frozenset({"DIR", "FOLDERS", "INTERFACE"})  # their variables are settings of the pool
GPUS_PER_REPLICA_VARIABLE = "EF_GPUS_PER_REPLICA"  # for users' code, if above 1: ranks 0 to N - 1 are the first replica
_LOCAL_FILE = "file://"
CREDENTIALS = re.compile(r"://[^/@]*:[^/@]*@")

# On these the pool, torchrun, CUDA, pip and the interpreter of a worker rely.
_OUR_NAMES = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    }
)
_OUR_STARTS = (
    *("EF_", "NATS_", "LD_", "DYLD_", "PYTHON", "PIP_", "UV_", "TORCHELASTIC_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NCCL_", "GLOO_", "OMP_", "OPENBLAS_", "MKL_", "KMP_"),
)

_READ_WITH_CUDA = ("PYTORCH_", "TORCH_")  # e.g. PYTORCH_CUDA_ALLOC_CONF; those of NVIDIA's libraries are ours


def is_read_with_cuda(name: str) -> bool:
    """Whether torch may read this variable when it starts CUDA, as a warm worker does before its job is known."""
    return name.startswith(_READ_WITH_CUDA)


def is_ours(name: str) -> bool:
    """Whether the pool keeps this variable for itself."""
    return name in _OUR_NAMES or name.startswith(_OUR_STARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSecret:
    """A variable whose value only executors can read (docs/adr/0069).

    Two with one name are equal: each sealing has other bytes, and a repeated submission is the same job.
    """

    name: VariableName
    sealed: SealedText = field(compare=False)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text, which the ledger keeps, without these values of secrets, also as Python and JSON quote them.

    Each line of a value is masked, too: a text may have only some of them.
    """
    masked: set[str] = set()
    for value in secrets:
        if len(value) >= _LEAST_MASKED:
            masked.update(_quoted(value))
        for line in value.splitlines():
            if len(line) >= _LEAST_MASKED_LINE:
                masked.update(_quoted(line))
    for form in sorted(masked, key=lambda form: (-len(form), form)):
        text = text.replace(form, "***")
    return text


def _quoted(value: str) -> Iterator[str]:
    """Yield the value as it is, and within the quotes of Python, single or double, and of JSON."""
    yield value
    yield repr(value)[1:-1]
    yield repr(f'"{value}')[2:-1]
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]


def local_path(uri: str) -> str | None:
    """The path on each node; None of data that a node fetches."""
    return unquote(uri.removeprefix(_LOCAL_FILE)) if uri.startswith(_LOCAL_FILE) else None


def _usable(data: Mapping[str, str]) -> Mapping[str, str]:
    if ours := sorted(DATA_NAMES_OF_OURS & data.keys()):
        variables = ", ".join(f"{DATA_VARIABLE}{name}" for name in ours)
        raise PydanticCustomError(
            "ours",
            "must be without {ours}: the pool has {variables} itself; take another name",
            {"ours": ", ".join(ours), "variables": variables},
        )
    for name, uri in data.items():
        path = local_path(uri)
        if path is not None and not path.startswith("/"):
            raise PydanticCustomError(
                "relative", "must have an absolute path in {name}: file:///folder", {"name": name}
            )
        if CREDENTIALS.search(uri):
            advice = "must be without the password in {name}, which all users could read; pass it as a secret"
            raise PydanticCustomError("password", advice, {"name": name})
    _refuse_above(MAX_DATA_BYTES, [*data, *data.values()])
    return data


def _refuse_ours(names: Iterable[str]) -> None:
    if ours := sorted(filter(is_ours, names)):
        raise PydanticCustomError(
            "ours", "must be without {ours}, which the pool sets for its workers", {"ours": ", ".join(ours)}
        )


def _permitted(variables: Mapping[str, str]) -> Mapping[str, str]:
    _refuse_ours(variables)
    _refuse_above(MAX_VARIABLES_BYTES, [*variables, *variables.values()])
    return variables


def _permitted_secrets(secrets: tuple[SealedSecret, ...]) -> tuple[SealedSecret, ...]:
    _refuse_ours(secret.name for secret in secrets)
    _refuse_above(MAX_SECRETS_BYTES, [secret.sealed for secret in secrets])
    return secrets


def _bounded(requirements: tuple[str, ...]) -> tuple[str, ...]:
    _refuse_above(MAX_REQUIREMENTS_BYTES, requirements)
    return requirements


def _refuse_above(limit: int, texts: Iterable[str]) -> None:
    num_bytes = sum(len(text.encode()) for text in texts)
    if num_bytes > limit:
        sizes = {"limit": f"{limit:,}", "num_bytes": f"{num_bytes:,}"}
        raise PydanticCustomError("bytes", "must be at most {limit} bytes, and has {num_bytes}", sizes)


Variables = Annotated[Mapping[VariableName, VariableValue], Len(max_length=MAX_VARIABLES), AfterValidator(_permitted)]
Secrets = Annotated[tuple[SealedSecret, ...], Len(max_length=MAX_VARIABLES), AfterValidator(_permitted_secrets)]
Requirements = Annotated[tuple[RequirementLine, ...], Len(max_length=MAX_REQUIREMENTS), AfterValidator(_bounded)]
DataUris = Annotated[Mapping[DataName, DataUri], Len(max_length=MAX_DATA), AfterValidator(_usable)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEnvironment:
    """A Python environment of the job alone, which each node makes once (docs/adr/0124).

    python: its version, "3.12" or "3.12.4"; "": that of the node. requirements: lines of a requirements file.
    constraints: the versions of a lock, for whatever of them is needed.
    """

    python: PythonVersion = ""
    requirements: Requirements = ()
    constraints: Requirements = ()
