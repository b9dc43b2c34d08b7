"""Which GPUs of this node may execute tasks of padding loads now, and which loads. Pure.

A GPU may while it is idle by the ledger and carries no worker here. The executor acts on each difference: a placement
that names the GPU takes it from its runner without another message.
"""

from elasticflow.services.executor.decisions.local_events_and_actions import NO_PADDING_SLOTS, UsePaddingSlots
from elasticflow.services.executor.decisions.state import PoolMembership, State
from elasticflow.shared.state.idle_windows import CARRIES_A_JOB


def padding_slots(state: State) -> UsePaddingSlots:
    """What padding loads may use. Nothing outside the pool, without contact, or while the executor shuts down."""
    if state.membership is not PoolMembership.MEMBER or state.cut_off or state.shutting_down:
        return NO_PADDING_SLOTS
    node = state.node_specification
    live = (load for _, load in sorted(state.pool.loads.items()) if load.live)
    loads = tuple(load for load in live if load.spec.fits(node.gpu_type, node.gpu_memory_bytes))
    if not loads:
        return NO_PADDING_SLOTS
    used = {worker.gpu.gpu_index for worker in state.running}
    since_s_G = state.pool.idle_since_s.get(state.node_id, ())
    idle = (gpu for gpu, since_s in enumerate(since_s_G) if since_s < CARRIES_A_JOB and gpu not in used)
    return UsePaddingSlots(
        gpus=tuple(idle),
        loads=loads,
        weights=state.pool.config.padding_weights,
    )
