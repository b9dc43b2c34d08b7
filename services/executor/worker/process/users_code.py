"""What is the user's code: modules that are none of Python, of an installed library or of this project, their
functions, and their objects."""

import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from types import FrameType
from typing import Any


def is_users_module(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and _is_users(name, getattr(module, "__file__", None) or "")


@lru_cache(maxsize=4096)
def _is_users(name: str, file: str) -> bool:
    root = name.partition(".")[0]
    return root not in sys.stdlib_module_names and root != "elasticflow" and "site-packages" not in file


def is_users_frame(frame: FrameType) -> bool:
    return is_users_module(frame.f_globals.get("__name__", ""))


def items_of(value: Any, most: int) -> Iterable[tuple[str, Any]]:
    """What a mapping, a list, a tuple or an object of a user's class holds, by the end of its name. most: items."""
    match value:
        case Mapping():
            return ((f"[{key!r}]", item) for key, item in list(islice(value.items(), most)))
        case list() | tuple():
            return ((f"[{index}]", item) for index, item in enumerate(value[:most]))
        case _ if is_users_module(type(value).__module__):
            return [(f".{name}", item) for name, item in getattr(value, "__dict__", {}).items()]
        case _:
            return []
