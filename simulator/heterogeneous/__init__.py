"""Pools of several GPU types, simulated in rounds: Gavel's policies as linear programs, with and without mixed types.

    throughput_table                how fast each model runs on each type; `workload/typed_pool.py` reads the pool
    configurations                  the sets of GPUs that a job may hold at once, and its throughput on each
    job_arrivals                    jobs from a seed
    las_program, deadline_program   policies: from the active jobs and the pool to shares of time
    round_placement, rounds         shares become six-minute rounds on whole GPUs, and the jobs run in them

A policy is any function of the type `Policy`. No live scheduler uses this package.
Axes: I = GPU types of the pool, in its order; J = active jobs; C = configurations of one job.
"""
