"""What recorded bytes said, compared with what is read from them now."""

from typing import Any


def contains(now: Any, then: Any) -> bool:
    """Whatever was said then is said now; fields may have been added since, and parts have a newer version."""
    if isinstance(then, dict):
        if isinstance(now, dict) and "payload" in then and now["version"] > then["version"]:
            return now["type"] == then["type"]
        return isinstance(now, dict) and all(key in now and contains(now[key], then[key]) for key in then)
    if isinstance(then, list):
        return isinstance(now, list) and len(now) == len(then) and all(map(contains, now, then))
    return type(now) is type(then) and now == then
