"""The scheduling algorithms, as pure functions of frozen values: no clock, no bus, no chance.

scaling_curve -> free_profile -> progressive_filling -> minimum_satisfactory_share (admission) -> allocation
topology -> buddy (placement); quota
"""
