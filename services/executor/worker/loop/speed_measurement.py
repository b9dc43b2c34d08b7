"""The speed of a job in a profiling run: on the GPUs of its generation, and with fewer virtual nodes.

One GPU measures several numbers of them, and several GPUs one virtual node on each: communication is most of that step.
Before, the first profiling run of a profile measures into how many virtual nodes one GPU cuts the batch without a loss.

Nothing of such a run is kept, so steps of a part of the batch may change the weights.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from elasticflow.services.executor.worker.data.virtual_nodes import chosen_count, counts_to_choose_from
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.trainer import Trainer
from elasticflow.services.executor.worker.loop.repeatability_check import run_first_step_twice
from elasticflow.services.executor.worker.process.channel import Channel
from elasticflow.services.executor.worker.process.device import DeviceLost, release_memory
from elasticflow.shared.messages.measurements import SingleGpuStepTimes, VirtualNodeCount, counts_to_measure
from elasticflow.shared.messages.worker_protocol.from_worker import Profiled
from elasticflow.shared.runtime.process.logs import log

_MIN_ITERATIONS = 3
_LEAST_STEP_S = 1e-6  # of the clock
_ROUNDS = 5  # through the numbers of virtual nodes: what slows the machine for a while does not decide
_LEAST_ROUNDS = 2  # where steps are long: their times differ less, and the user waits for the answer
_ENOUGH_S = 10.0  # of rounds, after these
_STEPS_A_ROUND = 2  # after one that is not counted
_HOPELESS = 1.5  # times the best step, in two rounds: this number of virtual nodes is not measured again
_HOPELESS_AT_ONCE = 4.0  # the same after one round, in which a busy machine may have delayed it


def measure_speed(trainer: Trainer, channel: Channel) -> Profiled | None:
    """Return the measured speed on rank 0, unless the worker is stopped before; None on other ranks."""
    assignment = trainer.assignment
    began_s = time.monotonic()
    if run_first_step_twice(trainer, stop=channel.stop_requested):  # also the warm-up
        return None
    first_step_s = time.monotonic() - began_s
    trainer.check_state()
    trainer.read_ahead.require_same_samples(trainer.engine.computed)
    virtual_nodes = virtual_nodes_of_continued(trainer)
    if assignment.most_virtual_nodes and trainer.function.reproducible == "bitwise" and trainer.members.group is None:
        until_s = began_s + assignment.timeouts.further_measurement_s
        virtual_nodes = choose_virtual_nodes(trainer, channel, assignment.most_virtual_nodes, until_s)
        began_s = time.monotonic()
    step_s = _median_step_s(trainer, channel)
    if step_s is None and trainer.is_over and trainer.is_rank_0:
        step_s = first_step_s  # of a job of one step, in which it is too long and so promises less
    one_virtual_node_s = _step_s_of_one_virtual_node(trainer, channel) if assignment.measures_step_times else None
    trainer.members.leave()
    if step_s is None:
        return None
    log.info("profiled", iterations_per_s=round(1 / step_s, 3))
    single_gpu = None
    if assignment.measures_step_times and assignment.plan.world_size == 1:
        until_s = began_s + assignment.timeouts.further_measurement_s
        single_gpu = _step_times(trainer, channel, step_s, until_s)
    epochs = trainer.dataset.epochs(trainer.spec.global_batch_size)
    return Profiled(
        iterations_per_s=1 / step_s,
        dataset_size=None if epochs is None else epochs.size,
        single_gpu=single_gpu,
        one_virtual_node_s=one_virtual_node_s,
        virtual_nodes=virtual_nodes,
    )


def virtual_nodes_of_continued(trainer: Trainer) -> VirtualNodeCount | None:
    """Those of the job that this one continues, if they are not the default: the speeds of its profile are measured
    with them, so later jobs of the profile have them, too."""
    assignment = trainer.assignment
    is_given = assignment.spec.continues is not None and assignment.plan.num_virtual_nodes
    if not is_given or trainer.function.reproducible != "bitwise":
        return None
    return VirtualNodeCount(count=trainer.members.virtual_nodes.count, source="code")


def choose_virtual_nodes(trainer: Trainer, channel: Channel, most: int, until_s: float) -> VirtualNodeCount:
    """Measure the whole batch in 1, 2, 4, ... virtual nodes, on one GPU, and begin again with the chosen number.

    The default stays if the user's code works with no other number, or if the time until until_s of the monotonic clock
    does not suffice: a choice among some of them would depend on how busy the machine was.
    """
    whole = trainer.members.virtual_nodes
    if trainer.function.virtual_nodes:
        return VirtualNodeCount(count=whole.count, source="code")
    step_s = _step_s_by_count(trainer, channel, counts_to_choose_from(whole.global_batch_size, most), until_s)
    chosen = chosen_count(step_s) if step_s else whole.count
    trainer.begin_again(GenerationMembers(None, replace(whole, count=chosen)))
    log.info("virtual_nodes_chosen", count=chosen, step_s_by_count=step_s)
    return VirtualNodeCount(count=chosen, source="measured" if step_s else "default", step_s_by_count=step_s)


def _step_s_by_count(trainer: Trainer, channel: Channel, counts: Sequence[int], until_s: float) -> dict[int, float]:
    """The median step of one GPU by the number of virtual nodes; empty if they were not all measured in time.

    A number with which the whole batch in so few parts exceeds the memory, or so few samples are an error, is left out.
    """
    samples_s, enough_s = {count: list[float]() for count in counts}, time.monotonic() + _ENOUGH_S
    for number in range(_ROUNDS):
        if number >= _LEAST_ROUNDS and time.monotonic() >= enough_s:
            break
        for count in sorted(samples_s):
            if channel.stop_requested or trainer.is_over:
                return {}
            if time.monotonic() >= until_s:
                return _medians(samples_s) if number >= _LEAST_ROUNDS else {}
            step_s = _mean_step_s(trainer, count)
            if step_s is None:
                del samples_s[count]
            else:
                samples_s[count].append(step_s)
        fastest_s = min(map(min, samples_s.values()), default=0.0)
        limit_s = (_HOPELESS if number else _HOPELESS_AT_ONCE) * fastest_s
        samples_s = {count: each for count, each in samples_s.items() if min(each) <= limit_s}
        if len(samples_s) <= 1:
            break
    return _medians(samples_s)


def _medians(samples_s: Mapping[int, Sequence[float]]) -> dict[int, float]:
    return {count: max(statistics.median(each), _LEAST_STEP_S) for count, each in samples_s.items()}


def _mean_step_s(trainer: Trainer, count: int) -> float | None:
    """Of some steps of the whole batch in so many virtual nodes; None after an error, or if the job has no more."""
    whole = replace(trainer.members.virtual_nodes, count=count)
    try:
        trainer.begin_again(GenerationMembers(None, whole))
        trainer.step(stop=False)
        trainer.settle()
        began_s = time.monotonic()
        num_steps = 0
        while num_steps < _STEPS_A_ROUND and not trainer.is_over:
            trainer.step(stop=False)
            num_steps += 1
        trainer.settle()
        return (time.monotonic() - began_s) / num_steps if num_steps else None
    except DeviceLost:
        raise
    except Exception as error:
        log.warning("virtual_nodes_not_measured", num_virtual_nodes=count, error=repr(error))
    trainer.roll_back()  # what it cannot roll back are weights, which are not kept
    release_memory(trainer.device)
    return None


def _median_step_s(trainer: Trainer, channel: Channel) -> float | None:
    """Rank 0's clock decides when the measurement suffices, or the job is over. None on other ranks, or if it was
    stopped before."""
    assignment = trainer.assignment

    def is_enough() -> bool:
        return (trainer.is_over and len(step_times_s) > 0) or (
            len(step_times_s) >= _MIN_ITERATIONS
            and (
                sum(step_times_s) >= assignment.profile_min_s or len(step_times_s) >= assignment.profile_max_iterations
            )
        )

    step_times_s: list[float] = []
    stopping = False
    while not (stopping or trainer.is_over):
        began_s = time.monotonic()
        stopping = trainer.step(stop=channel.stop_requested or (trainer.is_rank_0 and is_enough())).stop
        step_times_s.append(time.monotonic() - began_s)
    trainer.settle()
    if not (trainer.is_rank_0 and is_enough()):
        return None
    return max(statistics.median(step_times_s), _LEAST_STEP_S)


def _step_s_of_one_virtual_node(trainer: Trainer, channel: Channel) -> float | None:
    """A collective: the step with one virtual node on each of several GPUs. None on other ranks than 0.

    The fast mode hides communication behind the computation, so that it would take longer here than in training.
    """
    members = trainer.members
    whole, num_workers = members.virtual_nodes, members.world_size
    if trainer.function.reproducible == "fast" or not 1 < num_workers <= whole.count or trainer.is_over:
        return None
    samples = -(-num_workers * whole.global_batch_size // whole.count)
    part = replace(whole, count=num_workers, global_batch_size=samples, counts_by_rank=())
    return _step_s_of_part(trainer, channel, GenerationMembers(members.group, part))


def _step_times(trainer: Trainer, channel: Channel, whole_s: float, until_s: float) -> SingleGpuStepTimes:
    """Each count takes as long as the measurement of the whole batch at most. whole_s: its step.

    No count begins after until_s of the monotonic clock, so that a run with long steps does not time out. Nor does one
    after a count without a result, or after the job's own end.
    """
    whole = trainer.members.virtual_nodes
    is_fast = trainer.function.reproducible == "fast"
    num_virtual_nodes = whole.placeable_count(is_fast=is_fast)
    step_s_by_virtual_nodes = {num_virtual_nodes: whole_s}
    for count in counts_to_measure(num_virtual_nodes)[:-1]:
        if time.monotonic() >= until_s or trainer.is_over:
            break
        samples = -(-count * whole.global_batch_size // num_virtual_nodes)
        part = replace(whole, count=1 if is_fast else count, global_batch_size=samples, counts_by_rank=())
        step_s = _step_s_of_part(trainer, channel, GenerationMembers(None, part))
        if step_s is None:
            break
        step_s_by_virtual_nodes[count] = step_s
    log.info("profiled_on_one_gpu", step_s_by_virtual_nodes=step_s_by_virtual_nodes)
    return SingleGpuStepTimes(
        num_virtual_nodes=num_virtual_nodes,
        step_s_by_virtual_nodes=dict(sorted(step_s_by_virtual_nodes.items())),
        reproducible="fast" if is_fast else "bitwise",
    )


def _step_s_of_part(trainer: Trainer, channel: Channel, members: GenerationMembers) -> float | None:
    """The step with a part of the batch alone. None on other ranks, if it was stopped before, or after an error."""
    part = members.virtual_nodes
    try:
        trainer.begin_again(members)
        trainer.step(stop=False)  # the warm-up
        return _median_step_s(trainer, channel)
    except DeviceLost:
        raise
    except Exception as error:  # the user's code may not work on so few samples, which the job may never compute alone
        log.warning(
            "part_not_measured", num_virtual_nodes=part.count, samples=part.global_batch_size, error=repr(error)
        )
        return None
