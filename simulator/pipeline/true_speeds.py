"""How fast runs of the simulated pool really are, on GPUs of one type or of several.

The computation of one GPU is proportional to its virtual nodes. Communication is the rest of a step on several GPUs,
by the curve of its type. The slowest GPU makes the step.
"""

from collections.abc import Mapping
from dataclasses import replace

from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.single_gpu_step_times import SingleGpuStepTimes, counts_to_measure
from elasticflow.simulator.pipeline.timing_model import TimingModel
from elasticflow.simulator.timing.training_time import true_rate


class TrueSpeeds:
    """gpu_type_by_node: as the nodes name their types; "" stands for a type without a name."""

    def __init__(self, timing_model: TimingModel, gpu_type_by_node: Mapping[str, str]) -> None:
        self._timing, self._gpu_type_by_node = timing_model, gpu_type_by_node
        self._recorded = dict[str, str]()

    def launched(self, spec: JobSpec, node_id: str) -> None:
        """A worker of a run on GPUs of one type starts on this node: its spec tells how the ledger names the type."""
        self._recorded.setdefault(self.type_of(node_id), spec.gpu_type)

    def type_of(self, node_id: str) -> str:
        return self._gpu_type_by_node.get(node_id, "")

    def iterations_per_s(self, spec: JobSpec, gpu_types: tuple[str, ...], virtual_nodes: tuple[int, ...]) -> float:
        """gpu_types: of each worker. virtual_nodes: the same; empty: as many on each."""
        if len(set(gpu_types)) == 1 and not virtual_nodes:
            return true_rate(self._curve(spec, gpu_types[0]), len(gpu_types))
        counts = virtual_nodes or (self._largest_part(len(gpu_types)),) * len(gpu_types)
        communication_s = {each: self._communication_s(spec, each, len(gpu_types)) for each in set(gpu_types)}
        return 1.0 / max(
            self._one_gpu_s(spec, gpu_type, count) + communication_s[gpu_type]
            for gpu_type, count in zip(gpu_types, counts, strict=True)
        )

    def single_gpu(self, spec: JobSpec, gpu_type: str) -> SingleGpuStepTimes:
        """What a profiling run on one GPU measures."""
        num_virtual_nodes = self._timing.num_virtual_nodes
        step_s = {count: self._one_gpu_s(spec, gpu_type, count) for count in counts_to_measure(num_virtual_nodes)}
        return SingleGpuStepTimes(
            num_virtual_nodes=num_virtual_nodes, step_s_by_virtual_nodes=step_s, reproducible="fast"
        )

    def _curve(self, spec: JobSpec, gpu_type: str) -> Mapping[int, float]:
        on_type = replace(spec, gpu_type=self._recorded.get(gpu_type, spec.gpu_type))
        return self._timing.true_curves[on_type.configured_key]

    def _one_gpu_s(self, spec: JobSpec, gpu_type: str, count: int) -> float:
        """A worker without virtual nodes computes one of another worker again."""
        return max(count, 1) / self._timing.num_virtual_nodes / true_rate(self._curve(spec, gpu_type), 1)

    def _communication_s(self, spec: JobSpec, gpu_type: str, num_gpus: int) -> float:
        """That of the next larger number of GPUs in the curve; of the largest, if there is none."""
        curve = self._curve(spec, gpu_type)
        level = min((level for level in curve if level >= num_gpus), default=max(curve))
        alone_s = self._one_gpu_s(spec, gpu_type, self._largest_part(level))
        return max(1.0 / curve[level] - alone_s, 0.0) if level > 1 else 0.0

    def _largest_part(self, num_gpus: int) -> int:
        return -(-self._timing.num_virtual_nodes // num_gpus)
