"""The environment that a job asks for: variables of its workers, and packages that they import. Pure.

Both are in the ledger, which every user of a pool reads: they are no place for secrets.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated

from annotated_types import Len
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from elasticflow.shared.messages.limits import RequirementLine, VariableName, VariableValue

MAX_VARIABLES = 64
MAX_VARIABLES_BYTES = 16 * 1024  # of all names and values of a job
MAX_REQUIREMENTS = 256
MAX_REQUIREMENTS_BYTES = 16 * 1024

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


def is_ours(name: str) -> bool:
    """Whether the pool keeps this variable for itself."""
    return name in _OUR_NAMES or name.startswith(_OUR_STARTS)


def _permitted(variables: Mapping[str, str]) -> Mapping[str, str]:
    if ours := sorted(filter(is_ours, variables)):
        raise PydanticCustomError(
            "ours", "must be without {ours}, which the pool sets for its workers", {"ours": ", ".join(ours)}
        )
    _refuse_above(MAX_VARIABLES_BYTES, [*variables, *variables.values()])
    return variables


def _bounded(requirements: tuple[str, ...]) -> tuple[str, ...]:
    _refuse_above(MAX_REQUIREMENTS_BYTES, requirements)
    return requirements


def _refuse_above(limit: int, texts: Iterable[str]) -> None:
    num_bytes = sum(len(text.encode()) for text in texts)
    if num_bytes > limit:
        sizes = {"limit": f"{limit:,}", "num_bytes": f"{num_bytes:,}"}
        raise PydanticCustomError("bytes", "must be at most {limit} bytes, and has {num_bytes}", sizes)


Variables = Annotated[Mapping[VariableName, VariableValue], Len(max_length=MAX_VARIABLES), AfterValidator(_permitted)]
Requirements = Annotated[tuple[RequirementLine, ...], Len(max_length=MAX_REQUIREMENTS), AfterValidator(_bounded)]
