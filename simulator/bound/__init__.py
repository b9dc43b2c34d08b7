"""Two reference values beside each simulated result: what no scheduler can exceed, and what hindsight reaches.

    clairvoyant_bound     no scheduler meets more deadlines than this (a linear relaxation)
    hindsight_schedule    a scheduler that knows the future, and pays its resizes, meets at least these

`feasible_demand` turns a workload into arrays. `clairvoyant_bound` solves the relaxation with HiGHS, and `price_ascent`
bounds it from above where HiGHS would take too long. `cheapest_schedule` fits one job into the GPUs that others leave,
in the `timetable` of `hindsight_schedule`. No live scheduler uses this package: it knows the future.
"""

from elasticflow.simulator.bound.clairvoyant_bound import Bound, PriceProfile, clairvoyant_bound
from elasticflow.simulator.bound.feasible_demand import feasible_alone
from elasticflow.simulator.bound.hindsight_schedule import Hindsight, hindsight_schedule

__all__ = ["Bound", "Hindsight", "PriceProfile", "clairvoyant_bound", "feasible_alone", "hindsight_schedule"]
