"""Objects of users that a library's trainer holds, and that are state of its job."""

from collections import Counter
from collections.abc import Iterable
from typing import Any


def named_by_class(objects: Iterable[Any]) -> dict[str, Any]:
    """Each by the name of its class; the second one of a class has its number, too."""
    found, numbers = dict[str, Any](), Counter[str]()
    for each in objects:
        name = type(each).__name__
        numbers[name] += 1
        found[name if numbers[name] == 1 else f"{name}{numbers[name]}"] = each
    return found
