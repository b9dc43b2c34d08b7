"""Bounds on every size and number in a message, as annotated types that the codec enforces.

A value that passed the codec is within these bounds; no other code checks them again.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated

from annotated_types import Ge, Gt, Le, Len, Lt
from pydantic import AfterValidator, AllowInfNan, Strict, StringConstraints
from pydantic_core import PydanticCustomError

from elasticflow.shared.hidden_characters import HIDDEN

MAX_MESSAGE_BYTES = 4 * 1024 * 1024  # `streams.MAX_PAYLOAD_BYTES` is the server's setting for it
MAX_SUBMISSION_BYTES = 256 * 1024
MAX_ARCHIVE_BYTES = 16 * 1024 * 1024  # of a job's code
MAX_ARCHIVE_FILES = 50_000
MAX_GPUS = 1 << 17
MAX_GPUS_PER_REPLICA = 1 << 10
MAX_ITERATIONS = 1 << 40
MAX_BATCH = 1 << 30
MAX_TEXT_LENGTH = 20_000
MAX_RANGES = 2_000
MAX_PATH_LENGTH = 300
MAX_LAST_LINES = 20  # of a failed worker's log
MAX_NAME_LENGTH = 200
MAX_URI_LENGTH = 2_000
MAX_FEW_ITEMS = 256
MAX_METRICS_BYTES = 16 * 1024  # of the names and numbers of one worker
MAX_GPU_TYPE_LENGTH = 64
MAX_TIME_S = 1e11  # about the year 5138; a larger value has the wrong unit

_MAX_TOKEN_LENGTH = 64
TOKEN_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"  # one token of a NATS subject: no dots, spaces or wildcards
# "": unknown
GPU_TYPE_PATTERN = rf"^([A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_GPU_TYPE_LENGTH - 1}}})?$"
_MAYBE_TOKEN_PATTERN = r"^[A-Za-z0-9_-]{0,64}$"
_LINE_PATTERN = rf"^[^{HIDDEN}]*$"
_DIGEST_PATTERN = r"^([0-9a-f]{64})?$"
_CHAIN_PATTERN = r"^([0-9a-f]{32})?$"
_IDENTITY_PATTERN = r"^[0-9a-f]{16}$"
_MAYBE_IDENTITY_PATTERN = r"^([0-9a-f]{16})?$"
# below a folder, and never out of it: no part is empty, "." or ".."
_PART = rf"([^./\\{HIDDEN}]|\.[^./\\{HIDDEN}]|\.\.[^/\\{HIDDEN}])[^/\\{HIDDEN}]*"
FILE_PATH_PATTERN = rf"^{_PART}(/{_PART})*$"
# as in entry points; or a script's file, whatever its name
_FUNCTION_PATTERN = rf"^([^\W\d][\w.]*:[^\W\d]\w*|{_PART}\.py:__(main|torchrun)__)$"
PYTHON_PATTERN = r"^(3\.1[1-3](\.\d{1,2})?)?$"
_FOLDER_PATTERN = rf"^({_PART}(/{_PART})*)?$"
_VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
URI_PATTERN = rf"^[A-Za-z][A-Za-z0-9+.-]*://[^{HIDDEN}]+$"
_MAYBE_URI_PATTERN = rf"{URI_PATTERN[:-1]}$|^$"
_BASE64_PATTERN = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}(==|[A-Za-z0-9+/]=))?$"
_VALUE_PATTERN = r"^[^\x00]*$"
RACK_PATTERN = r"^(?=.{0,200}$)([A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*)?$"
PATTERNS_IN_WORDS = {
    TOKEN_PATTERN: "must be 1 to 64 letters, digits, _ and -",
    _MAYBE_TOKEN_PATTERN: "must be up to 64 letters, digits, _ and -",
    GPU_TYPE_PATTERN: "must be up to 64 letters, digits, ., _ and -, the first a letter or digit",
    _LINE_PATTERN: "must be without control characters, also those of Unicode that move or hide others",
    RACK_PATTERN: "must be a path like hall-1/row-2/rack-3, of letters, digits, ., _ and -",
    _DIGEST_PATTERN: "must be the 64 hexadecimal digits of a SHA-256",
    _CHAIN_PATTERN: "must be 32 hexadecimal digits",
    _IDENTITY_PATTERN: "must be the 16 hexadecimal digits of a job's identity",
    _MAYBE_IDENTITY_PATTERN: "must be the 16 hexadecimal digits of a job's identity",
    _FUNCTION_PATTERN: "must be like package.module:Class",
    PYTHON_PATTERN: "must be 3.11, 3.12 or 3.13, or such a version with a third number",
    _FOLDER_PATTERN: "must be a folder like src/jobs, below another one",
    _VARIABLE_PATTERN: "must be a name of letters, digits and _",
    URI_PATTERN: "must be a URI like s3://bucket/folder or file:///data/set",
    _MAYBE_URI_PATTERN: "must be a URI like s3://bucket/folder",
    _BASE64_PATTERN: "must be base64",
    _VALUE_PATTERN: "must be without null characters",
    FILE_PATH_PATTERN: "must be a path below a folder",
}

Token = Annotated[str, StringConstraints(pattern=TOKEN_PATTERN)]
NodeNames = Annotated[tuple[Token, ...], Len(max_length=1024)]
MaybeToken = Annotated[str, StringConstraints(pattern=_MAYBE_TOKEN_PATTERN)]  # "": unknown
Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_LENGTH, pattern=_LINE_PATTERN)]
ModelName = Annotated[str, StringConstraints(max_length=200, pattern=_LINE_PATTERN)]  # "": the function names it
# a model's name or a function, with batch size, GPU type and range: each that a job may have fits
ProfileKey = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=_LINE_PATTERN)]
Rack = Annotated[str, StringConstraints(max_length=200, pattern=_LINE_PATTERN)]  # "": unknown
GpuType = Annotated[str, StringConstraints(pattern=GPU_TYPE_PATTERN)]
NamedGpuType = Annotated[GpuType, Len(min_length=1)]
Text = Annotated[str, StringConstraints(max_length=MAX_TEXT_LENGTH)]
Digest = Annotated[str, StringConstraints(pattern=_DIGEST_PATTERN)]
SecretDigest = Annotated[str, StringConstraints(pattern=r"^(none|[0-9a-f]{16})?$")]  # "": unknown
ChainDigest = Annotated[str, StringConstraints(pattern=_CHAIN_PATTERN)]  # "": unknown
Identity = Annotated[str, StringConstraints(pattern=_IDENTITY_PATTERN)]  # as `Job.identity`
MaybeIdentity = Annotated[str, StringConstraints(pattern=_MAYBE_IDENTITY_PATTERN)]  # "": of no job
FilePath = Annotated[str, StringConstraints(max_length=MAX_PATH_LENGTH, pattern=FILE_PATH_PATTERN)]
FunctionPath = Annotated[str, StringConstraints(max_length=300, pattern=_FUNCTION_PATTERN)]
VariableName = Annotated[str, StringConstraints(max_length=128, pattern=_VARIABLE_PATTERN)]
DataName = Annotated[str, StringConstraints(max_length=64, pattern=_VARIABLE_PATTERN)]
MaybeUri = Annotated[str, StringConstraints(max_length=MAX_URI_LENGTH, pattern=_MAYBE_URI_PATTERN)]  # "": none
DataUri = Annotated[str, StringConstraints(max_length=MAX_URI_LENGTH, pattern=URI_PATTERN)]
VariableValue = Annotated[str, StringConstraints(max_length=16 * 1024, pattern=_VALUE_PATTERN)]
SealedText = Annotated[str, StringConstraints(max_length=32 * 1024, pattern=_BASE64_PATTERN)]
SealingKey = Annotated[str, StringConstraints(max_length=44, pattern=_BASE64_PATTERN)]  # "": none
PythonVersion = Annotated[str, StringConstraints(pattern=PYTHON_PATTERN)]  # "": that of each node
RequirementLine = Annotated[str, StringConstraints(min_length=1, max_length=2_000, pattern=_LINE_PATTERN)]
Folder = Annotated[str, StringConstraints(max_length=300, pattern=_FOLDER_PATTERN)]  # "": the one that holds it

NumSockets = Annotated[int, Strict(), Gt(0), Le(64)]
NumGpus = Annotated[int, Strict(), Ge(0), Le(MAX_GPUS)]
PositiveGpus = Annotated[int, Strict(), Gt(0), Le(MAX_GPUS)]


def _power_of_two(number: int) -> int:
    if number & (number - 1):
        raise PydanticCustomError("power_of_two", "must be a power of two: 1, 2, 4, 8, ...")
    return number


GpusPerReplica = Annotated[int, Strict(), Gt(0), Le(MAX_GPUS_PER_REPLICA), AfterValidator(_power_of_two)]
Index = Annotated[int, Strict(), Ge(0), Le(MAX_GPUS)]
TaskIndex = Annotated[int, Strict(), Ge(0), Lt(1 << 40)]  # of a task within its padding load
TaskRanges = Annotated[tuple[tuple[TaskIndex, TaskIndex], ...], Len(max_length=MAX_RANGES)]  # as in `index_ranges`
Iterations = Annotated[int, Strict(), Ge(0), Le(MAX_ITERATIONS)]
NumBytes = Annotated[int, Strict(), Ge(0), Le(2**53)]
Weight = Annotated[float, Strict(), Gt(0), Le(1e6)]
PositiveIterations = Annotated[int, Strict(), Gt(0), Le(MAX_ITERATIONS)]
BatchSize = Annotated[int, Strict(), Gt(0), Le(MAX_BATCH)]
NumSamples = Annotated[int, Strict(), Ge(0), Le(MAX_BATCH)]
NumVirtualNodes = Annotated[int, Strict(), Ge(0), Le(MAX_BATCH)]
VirtualNodesByRank = Annotated[tuple[NumVirtualNodes, ...], Len(max_length=4096)]  # empty: as even as possible
Generation = Annotated[int, Strict(), Ge(0), Le(1 << 31)]
Integer = Annotated[int, Strict(), Ge(-(1 << 63)), Lt(1 << 63)]
Seed = Annotated[int, Strict(), Ge(0), Lt(1 << 63)]
Sequence = Annotated[int, Strict(), Ge(0), Le(1 << 62)]
TimeS = Annotated[float, Strict(), Ge(0), Le(MAX_TIME_S), AllowInfNan(False)]
DurationS = Annotated[float, Strict(), Ge(0), Le(MAX_TIME_S), AllowInfNan(False)]
# the longest reservation of a quote
ReservationS = Annotated[float, Strict(), Gt(0), Le(600), AllowInfNan(False)]
PositiveDurationS = Annotated[float, Strict(), Gt(0), Le(MAX_TIME_S), AllowInfNan(False)]
Rate = Annotated[float, Strict(), Ge(0), Le(1e12), AllowInfNan(False)]  # iterations per second
Finite = Annotated[float, Strict(), AllowInfNan(False)]
Fraction = Annotated[float, Strict(), Ge(0), Le(1), AllowInfNan(False)]

FewItems = Len(max_length=MAX_FEW_ITEMS)


def metrics_bytes(names: Iterable[str]) -> int:
    """The approximate number of bytes of metrics with these names, as they are sent."""
    return sum(len(name.encode()) + 12 for name in names)


def _within_bytes(metrics: Mapping[str, float]) -> Mapping[str, float]:
    if (num_bytes := metrics_bytes(metrics)) > MAX_METRICS_BYTES:
        raise ValueError(f"metrics of {num_bytes:,} bytes are above {MAX_METRICS_BYTES:,}")
    return metrics


# of one worker: a heartbeat carries those of all jobs of its node
WorkerMetrics = Annotated[Mapping[Name, Finite], FewItems, AfterValidator(_within_bytes)]


def next_name(token: str) -> str:
    """The name that people would give the next one: digits-2 after digits, digits-3 after digits-2."""
    base, separator, number = token.rpartition("-")
    counts = bool(separator) and number.isdecimal() and len(number) < 4
    name, count = (base, int(number) + 1) if counts else (token, 2)
    return f"{name[: _MAX_TOKEN_LENGTH - 5]}-{count}"


def local_time(at_s: float) -> str:
    """Like 2026-05-01 18:00:04, where this process runs."""
    return datetime.fromtimestamp(at_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
