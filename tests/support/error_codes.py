"""Expected errors of one class that a test tells apart."""

from collections.abc import Callable

from elasticflow.shared.errors import ElasticFlowError


def coded(code: str) -> Callable[[ElasticFlowError], bool]:
    """The `check` of pytest.raises: the error has this code."""
    return lambda error: error.code == code
