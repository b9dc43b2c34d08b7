"""Parts of sentences about jobs: specifications, promises, offers and measurements, with numbers. Pure."""

from collections.abc import Mapping, Sequence
from typing import assert_never

from elasticflow.shared.messages import events
from elasticflow.shared.messages.event_summary import counted, gpus_counted, gpus_in_words
from elasticflow.shared.messages.gpus import ANY_NUMBER, GpuLimits, GpuRange, ShareSchedule, rounded_in_words, segments
from elasticflow.shared.messages.job_spec import TORCHRUN, JobSpec, Scalar
from elasticflow.shared.messages.measurements import VirtualNodeCount
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.rejection import Offer
from elasticflow.shared.messages.worker_protocol.from_worker import MODEL_FOLDER, iteration_of_model
from elasticflow.shared.state.job import Job, Phase
from elasticflow.times import duration_in_words, moment_in_words


def spec_in_words(spec: JobSpec) -> str:
    """The work of a job, and its class."""
    before = spec.continues
    continues = "" if before is None else f" from iteration {before.iteration} of {before.job_id} on"
    return (
        f"{spec.training_function}, {counted(spec.max_iterations, 'iteration')}{_size_in_words(spec)}{continues}, "
        f"class {spec.job_class.value.replace('_', '-')}"
    )


def profiled_spec_in_words(spec: JobSpec) -> str:
    """What a requested profile measures."""
    return f"{spec.training_function}, iterations{_size_in_words(spec)}"


def _size_in_words(spec: JobSpec) -> str:
    only_on = "" if spec.gpu_range == ANY_NUMBER else f" on {spec.gpu_range.in_words} only"
    gangs = f", {spec.gpus_per_replica} for each replica" if spec.gpus_per_replica > 1 else ""
    return f" of {counted(spec.global_batch_size, 'sample')}{only_on}{gangs}"


def deadline_in_words(deadline_s: float | None, now_s: float) -> str:
    return "no deadline" if deadline_s is None else f"deadline {moment_in_words(deadline_s, now_s)}"


def undecided_in_words(event: events.ProfileRequested) -> str:
    """Why there is no decision yet."""
    if event.waits_for == "gpus":
        done = "profiled" if event.profile_only else "decided"
        return f"the pool has no GPUs now, so the job is {done} when a node joins"
    before = "" if event.profile_only else " before the decision"
    estimate = f"; {event.estimate}" if event.estimate else ""
    if event.measured_from_s is None:
        return f"its speed is unknown, so it is measured on free GPUs{before}{estimate}"
    gpus, num_runs = gpus_counted(event.spec.gpu_range.least), event.num_runs_before
    after = f" after {counted(num_runs, 'other job')}" if num_runs else ""
    if event.measured_from_s > event.at_s:
        spared_at = moment_in_words(event.measured_from_s, event.at_s)
        why = f"; promises spare no GPU for that now, by the plan {gpus} from {spared_at} on"
        return f"its speed is unknown, so it is measured{after}{before}{why}{estimate}"
    return f"its speed is unknown, so it is measured on {gpus}{after}{before}{estimate}"


def measured_in_words(event: events.ThroughputMeasured) -> str:
    """What a profiling run has measured."""
    return f"measured {event.iterations_per_s:.3g} iterations/s on {gpus_counted(event.num_gpus)}"


def margin_in_words(config: PoolConfig) -> str:
    """How much slower than measured promises expect a job to be."""
    if config.confidence is None:
        return f"a margin of {config.throughput_margin:.0%}"
    return f"what a confidence of {config.confidence:g} requires"


def other_offers(event: events.JobRejected) -> tuple[Offer, ...]:
    """The offers other than the earliest deadline, which is the first one."""
    return event.offers if event.earliest_deadline_s is None else event.offers[1:]


def offer_in_words(offer: Offer, spec: JobSpec | None, now_s: float) -> str:
    """The offer as "40 iterations, in batches of 64, by 15:04:14 (in 21.2s)"; the batch size only if it changes."""
    other_batch = spec is None or offer.global_batch_size != spec.global_batch_size
    batches = f", in batches of {offer.global_batch_size}," if other_batch else ""
    return f"{counted(offer.max_iterations, 'iteration')}{batches} by {moment_in_words(offer.deadline_s, now_s)}"


def artifacts_in_words(event: events.ArtifactsStored, job: Job, others: Sequence[str]) -> str:
    """What `eflow fetch` gets, and what it does not. others: as in `why_no_model`."""
    why = why_no_model(event, job, others)
    model = "" if event.model is None else f"the model of iteration {event.iteration}"
    num_files = len(event.files) + len(event.outputs)
    files = counted(num_files, "file") if num_files else ""
    stored = " and ".join(filter(None, (model, files)))
    kept = f"stored for `eflow fetch`: {stored}, {bytes_in_words(event.num_bytes)}" if stored else ""
    nothing = "" if stored or event.num_unstored else "it left no files to store"
    unstored = [file for file in event.unstored if not _is_model(file)]
    num_unstored = event.num_unstored - len(event.unstored) + len(unstored)
    named = "; ".join(f"{file.path}: {file.reason}" for file in unstored[:3])
    left = f"{num_unstored} not stored, on node {event.node_id}: {named}" if num_unstored else ""
    return "; ".join(filter(None, (kept, nothing, f"no model: {why}" if why else "", left)))


def why_no_model(event: events.ArtifactsStored, job: Job, others: Sequence[str]) -> str:
    """Why no model is stored; "" if one is. others: nodes that keep files of the job in other data folders."""
    if event.model is not None:
        return ""
    if job.spec is not None and job.spec.entry == TORCHRUN:
        has_files = event.files or event.outputs
        return f"a --torchrun script keeps its own, {'among its files' if has_files else 'and none is stored'}"
    if event.iteration:  # the node has a model
        why = next((f": {file.path}: {file.reason}" for file in event.unstored if _is_model(file)), "")
        return f"that of iteration {event.iteration} is not stored, on node {event.node_id}{why}"
    folder = f"/checkpoints/{job.job_id}"
    if failed := next((file for file in event.unstored if file.path.endswith(folder)), None):
        return f"nothing could be stored: {failed.reason}"
    if not job.checkpoint_iteration:
        return "it has saved no checkpoint"
    nodes = [node for node in job.trained_on if node == event.node_id or node in others]
    nodes = nodes or job.trained_on or (event.node_id,)
    if job.phase is Phase.FINISHED:
        return f"the data folder of {event.node_id} has none; {checkpoint_in_words(job, nodes)}"
    return f"none was stored while it trained; {checkpoint_in_words(job, nodes)}"


def checkpoint_in_words(job: Job, nodes: Sequence[str]) -> str:
    """Where the newest checkpoint of a job is: on one of these nodes."""
    where = f"on {' or '.join(nodes)}, in the folder checkpoints/{job.job_id} of the data folder"
    goes_on = "" if job.live else f"; `eflow submit ... --from {job.job_id}` trains on from it"
    return f"its checkpoint of iteration {job.checkpoint_iteration} stays {where}{goes_on}"


def _is_model(file: events.UnstoredFile) -> bool:
    folder, _, name = file.path.rpartition("/")
    return folder.endswith(f"/{MODEL_FOLDER}") and iteration_of_model(name) is not None


def shortened(text: str, width: int) -> str:
    """The text, without its middle if it is longer: names of one sweep differ at their ends."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 5
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def left_files_in_words(nodes: Sequence[str], storing: str) -> str:
    """The files that a job left on other nodes than the one that stores its files."""
    return (
        f"files that it wrote on {', '.join(nodes)} stay there: only those in the data folder of {storing} are stored, "
        "which is another one"
    )


def end_in_words(event: events.NodeEndAnnounced) -> str:
    """The announced end, such as "node-7 ends at 15:04:14 (in 2m 00s)"."""
    if event.until_s is None:
        return f"{event.node_id} stays: no end is known"
    return f"{event.node_id} ends at {moment_in_words(event.until_s, event.at_s)}"


def notice_in_words(event: events.NodeEndNoticed) -> str:
    """What the machine's own notice says, such as "node-7 has notice to end at 15:04:14 (in 2m 00s)"."""
    if event.until_s is None:
        return f"the notice that {event.node_id} ends was withdrawn"
    return f"{event.node_id} has notice to end at {moment_in_words(event.until_s, event.at_s)}"


def failing_in_words(event: events.GpuFailing) -> str:
    """Why a GPU should compute nothing, such as "GPU 3 of node-7 needs a reset"."""
    return f"GPU {event.gpu_index} of {event.node_id} {event.reason}"


def ended_in_words(job: Job) -> str:
    """How an ended job ended, such as "failed at iteration 40"."""
    word = job.phase.value if job.phase in (Phase.FAILED, Phase.FINISHED) else f"was {job.phase.value}"
    return f"{word} at iteration {job.iteration}" if job.iteration else word


def bytes_in_words(count: int) -> str:
    """The number of bytes in words, such as "1.2 MB"."""
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def gpus_by_type_in_words(num_gpus_by_type: Mapping[str, int]) -> str:
    """The counts in words, such as "8 H100-80GB-HBM3, 4 cpu-0.25"."""
    return ", ".join(f"{count} {gpu_type or 'of no named type'}" for gpu_type, count in num_gpus_by_type.items())


def types_in_words(gpu_type: str, num_gpus: int, num_added_by_type: Mapping[str, int]) -> str:
    """The types of a job with `num_gpus` in all: "V100", or "4 V100 + 2 P100" where GPUs of another type joined."""
    if not num_added_by_type:
        return gpu_type
    num_own = num_gpus - sum(num_added_by_type.values())
    return " + ".join(f"{num} {name}" for name, num in {gpu_type: num_own, **num_added_by_type}.items())


def gpus_of_types(num_gpus: int, gpu_type: str, num_added_by_type: Mapping[str, int]) -> str:
    """The GPUs of a job: as "4 GPUs of type V100", or "6 GPUs (4 V100 + 2 P100)" where others joined."""
    if not num_added_by_type:
        return gpus_counted(num_gpus, gpu_type)
    return f"{gpus_counted(num_gpus)} ({types_in_words(gpu_type, num_gpus, num_added_by_type)})"


def limits_in_words(limits: GpuLimits | events.GpuLimitsSet, now_s: float) -> str:
    """The limits in words, such as "at most 2 GPUs and none of node-1:3 until 15:04:14 (in 10m 00s)"."""
    sizes = GpuRange.of(limits.min_gpus or 1, limits.max_gpus)
    ends = (("at least", limits.min_gpus and sizes.least), ("at most", limits.max_gpus and sizes.most))
    text = " and ".join(f"{word} {gpus_counted(count)}" for word, count in ends if count is not None)
    text += f" ({rounded})" if (rounded := rounded_in_words(limits.min_gpus, limits.max_gpus)) else ""
    text += f" and none of {gpus_in_words(limits.without_gpus)}" if limits.without_gpus else ""
    return text + ("" if limits.until_s is None else f" until {moment_in_words(limits.until_s, now_s)}")


def schedule_in_words(schedule: ShareSchedule) -> str:
    """The schedule in words, such as "2 GPUs for 1m 10s, then 1 GPU for 20.0s"."""
    steps = [f"{gpus_counted(s.num_gpus)} for {duration_in_words(s.end_s - s.start_s)}" for s in segments(schedule)]
    return ", then ".join(steps) or "nothing"


def virtual_nodes_in_words(virtual_nodes: VirtualNodeCount) -> str:
    """How many, and why: with the steps of one GPU by which they were chosen."""
    cut = f"its batch is cut into {counted(virtual_nodes.count, 'virtual node')}"
    match virtual_nodes.source:
        case "code":
            return f"{cut}, as its code says, or as the job has that it continues"
        case "default":
            return f"{cut}, the default: a profiling run could not measure another number"
        case "measured":
            steps = ", ".join(f"{count}: {1000 * s:.3g} ms" for count, s in virtual_nodes.step_s_by_count.items())
            return f"{cut}, the most that hardly slow one GPU down (a step in {steps})"
        case _:
            assert_never(virtual_nodes.source)


def speeds_in_words(iterations_per_s: Mapping[int, float]) -> str:
    """The speeds in words, such as "1.2/s on 1 GPU, 2.1/s on 2 GPUs"."""
    return ", ".join(f"{rate:.3g}/s on {gpus_counted(count)}" for count, rate in sorted(iterations_per_s.items()))


def metrics_in_words(metrics: Mapping[str, float]) -> str:
    """The end of a sentence, such as ", accuracy 0.95, loss 0.12"."""
    return "".join(f", {name} {value:.4g}" for name, value in metrics.items())


def value_in_words(value: Scalar) -> str:
    """The value as a command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
