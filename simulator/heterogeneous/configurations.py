"""The sets of GPUs that a job may hold at once, and its throughput on each.

A configuration counts GPUs of each type. Without mixing it has GPUs of one type only. A configuration that needs no
fewer GPUs of any type than a faster one is left out: no policy and no placement would choose it.
Axes: I = GPU types of the pool; C = configurations of one job.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.scheduling.compiled.compile import Floats
from elasticflow.simulator.heterogeneous.throughput_table import ThroughputTable
from elasticflow.simulator.timing.mixed_types import mix_throughput
from elasticflow.simulator.workload.typed_pool import TypedPool


@dataclass(frozen=True, slots=True, eq=False)
class Configurations:
    """throughput_C: iterations/s. equal_throughput: of one GPU's time that is spread evenly over the pool."""

    num_gpus_CI: NDArray[np.int64]
    throughput_C: Floats
    equal_throughput: float

    @property
    def normalized_C(self) -> Floats:
        """Throughput in equal shares: 1 is worth as much to this job as one average GPU of the pool."""
        return self.throughput_C / self.equal_throughput


def configurations(
    table: ThroughputTable, pool: TypedPool, model: str, levels: Sequence[int], mix_efficiency: float | None
) -> Configurations:
    """What a job of this model may hold, if it takes one of the numbers `levels` of each type.

    mix_efficiency: see `mix_throughput`; None keeps each configuration on one type.
    Raises BadSettings if the table lacks the model or a type, or if the model runs on no such GPUs.
    """
    rates_I = [
        {0: 0.0} | {num: rate for num, rate in table.throughputs(model, name).items() if num in levels and num <= most}
        for name, most in zip(pool.gpu_types, pool.num_gpus, strict=True)
    ]
    numbers = [
        numbers
        for numbers in product(*rates_I)
        if np.count_nonzero(numbers) == 1 or (any(numbers) and mix_efficiency is not None)
    ]
    if not numbers:
        raise BadSettings((f"model {model!r} does not run on {_either(levels)} GPUs of one type of the pool {pool}",))
    throughput_C = np.array(
        [mix_throughput([rates_I[i][num] for i, num in enumerate(mix) if num], mix_efficiency) for mix in numbers]
    )
    kept_C = _undominated(np.array(numbers), throughput_C)
    per_gpu_I = np.array([table.throughput_per_gpu(model, name) for name in pool.gpu_types])
    return Configurations(
        np.array(numbers)[kept_C], throughput_C[kept_C], float(per_gpu_I @ pool.num_gpus_I) / pool.total_gpus
    )


def _undominated(num_gpus_CI: NDArray[np.int64], throughput_C: Floats) -> NDArray[np.bool_]:
    """Which configurations are faster than all others that need at most their GPUs."""
    needs_more_CC = (num_gpus_CI[None, :, :] - num_gpus_CI[:, None, :]).max(axis=2) > 0
    other_CC = ~needs_more_CC & ~np.eye(len(throughput_C), dtype=np.bool_)
    fastest_C = np.where(other_CC, throughput_C[None, :], 0.0).max(axis=1)
    return throughput_C > fastest_C


def _either(levels: Sequence[int]) -> str:
    return " or ".join(map(str, levels))
