"""Runners of padding loads (start, gap between tasks, tasks per second, preemption), and their streams on the bus."""
