"""Tests of isolated workers need a machine that lets a process have namespaces of its own."""

import pytest

from elasticflow.shared.runtime.process.isolation.machine_check import namespaces_problem


def skip_without_namespaces() -> None:
    """Skip the running test on a machine that forbids them, as containers may."""
    if problem := namespaces_problem():
        pytest.skip(f"no namespaces on this machine: {problem}")
