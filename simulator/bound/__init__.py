"""What nobody can beat, and what hindsight could reach: the two rulers beside each simulated result.

    clairvoyant_bound     no scheduler meets more deadlines than this (a linear relaxation)
    hindsight_schedule    one that knows the future, and pays its resizes, meets at least these

`demand` turns a workload into arrays, `linear_program` solves the relaxation with HiGHS, `pricing` bounds it from
above where that would take too long, `fitting` fits one job into what others leave, for `hindsight`. Nothing here
is used by a live scheduler: it looks into the future.
"""

from simulator.bound.demand import feasible_alone
from simulator.bound.hindsight import Hindsight, hindsight_schedule
from simulator.bound.relaxation import Bound, PriceProfile, clairvoyant_bound

__all__ = ["Bound", "Hindsight", "PriceProfile", "clairvoyant_bound", "feasible_alone", "hindsight_schedule"]
