"""Bounds on every size and number at the door, as annotated types that the codec enforces.

A value that passed the codec is within these bounds; nothing behind it checks them again.
"""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Len, Lt
from pydantic import AllowInfNan, Strict, StringConstraints

MAX_MESSAGE_BYTES = 4 * 1024 * 1024  # the embedded server's max_payload
MAX_SUBMISSION_BYTES = 256 * 1024
MAX_GPUS = 1 << 17
MAX_ITERATIONS = 1 << 40
MAX_BATCH = 1 << 30
MAX_TIME_S = 1e11  # some 3,000 years after 1970: later is a mistake in units

# One token of a NATS subject: no dots, spaces or wildcards.
TOKEN_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
Token = Annotated[str, StringConstraints(pattern=TOKEN_PATTERN)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]*$")]
Rack = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f]*$")]  # "": not known
Text = Annotated[str, StringConstraints(max_length=20_000)]
Digest = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]
# "package.module:Class", as in entry points.
FunctionPath = Annotated[str, StringConstraints(max_length=300, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]

NumSockets = Annotated[int, Strict(), Gt(0), Le(64)]
NumGpus = Annotated[int, Strict(), Ge(0), Le(MAX_GPUS)]
Index = Annotated[int, Strict(), Ge(0), Le(MAX_GPUS)]
Iterations = Annotated[int, Strict(), Ge(0), Le(MAX_ITERATIONS)]
PositiveIterations = Annotated[int, Strict(), Gt(0), Le(MAX_ITERATIONS)]
BatchSize = Annotated[int, Strict(), Gt(0), Le(MAX_BATCH)]
Generation = Annotated[int, Strict(), Ge(0), Le(1 << 31)]
Integer = Annotated[int, Strict(), Ge(-(1 << 63)), Lt(1 << 63)]
Seed = Annotated[int, Strict(), Ge(0), Lt(1 << 63)]
Sequence = Annotated[int, Strict(), Ge(0), Le(1 << 62)]
TimeS = Annotated[float, Strict(), Ge(0), Le(MAX_TIME_S), AllowInfNan(False)]
DurationS = Annotated[float, Strict(), Ge(0), Le(MAX_TIME_S), AllowInfNan(False)]
HoldS = Annotated[float, Strict(), Gt(0), Le(600), AllowInfNan(False)]  # a quote is held for so long at most
PositiveDurationS = Annotated[float, Strict(), Gt(0), Le(MAX_TIME_S), AllowInfNan(False)]
Rate = Annotated[float, Strict(), Ge(0), Le(1e12), AllowInfNan(False)]  # iterations per second
Finite = Annotated[float, Strict(), AllowInfNan(False)]
Fraction = Annotated[float, Strict(), Ge(0), Le(1), AllowInfNan(False)]

FewItems = Len(max_length=256)
