"""The planners' judgement, by the name that stands in their decisions."""

from collections.abc import Mapping

from services.admission.policy import POLICY as ADMISSION
from services.allocator.policy import POLICY as ALLOCATOR
from services.placement.policy import POLICY as PLACEMENT
from shared.messages.policy import Policy
from shared.messages.pool_state import PoolState

PLANNERS: Mapping[str, Policy[PoolState]] = {
    policy.service: policy for policy in (ADMISSION, ALLOCATOR, PLACEMENT)
}
