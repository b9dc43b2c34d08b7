"""The number of examples of a property, relative to the default, of which `make search` has many times as many."""

from hypothesis import settings


def examples(percent: int) -> settings:
    """Decorator for a property that needs more or fewer examples than the default."""
    return settings(max_examples=max(percent * settings().max_examples // 100, 1))
