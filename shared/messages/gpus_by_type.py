"""Numbers of GPUs by type, as users write them: `4xV100,8xP100,16xK80`."""

import re

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.limits import MAX_GPUS

_GPUS_OF_TYPE = re.compile(r"([0-9]{1,9})x([A-Za-z0-9][A-Za-z0-9._-]{0,63})")
_EXPECTED = "give each type once, as NUMBERxTYPE, for example 4xV100,8xP100,16xK80"


def gpus_by_type(text: str, name: str) -> dict[str, int]:
    """The numbers that `text` gives, in its order. BadSettings names the setting and the part that is wrong."""
    counts = dict[str, int]()
    for part in text.split(","):
        match = _GPUS_OF_TYPE.fullmatch(part.strip())
        if match is None:
            raise BadSettings((f"{name} {text!r}: cannot read {part.strip()!r}; {_EXPECTED}",))
        count, gpu_type = int(match[1]), match[2]
        if gpu_type in counts:
            raise BadSettings((f"{name} {text!r}: type {gpu_type} appears twice; {_EXPECTED}",))
        if not 1 <= count <= MAX_GPUS:
            raise BadSettings((f"{name} {text!r}: the number of {gpu_type} must be 1 to {MAX_GPUS}",))
        counts[gpu_type] = count
    return counts
