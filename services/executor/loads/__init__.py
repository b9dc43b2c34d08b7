"""Padding loads on the idle GPUs of this node: pulls bundles of tasks, runs them in runners, stores their results."""
