"""How many examples a property gets, in parts of the usual number, which `make search` raises to ten times as many."""

from hypothesis import settings


def examples(percent: int) -> settings:
    """To decorate a property with, for which the usual number would be too many or too few."""
    return settings(max_examples=percent * settings().max_examples // 100)
