"""The scheduling algorithms, as pure functions: no clock, no bus, no chance. Arrays change in place only inside them.

profile -> filling (one job) -> planning (many) -> admission_plan -> allocation; selection (what is worth it)
pool_rows -> planned_pool (a folded pool as a plan); lower_bound -> relaxation -> witness (why not)
topology -> blocks -> seats -> buddy (placement); quota
"""
