"""The number of examples of a property, relative to the default, which `make search` multiplies by ten."""

from hypothesis import settings


def examples(percent: int) -> settings:
    """Decorator for a property that needs more or fewer examples than the default."""
    return settings(max_examples=percent * settings().max_examples // 100)
