"""Which modules are the user's code: none of Python, of an installed library or of this project."""

import sys
from functools import lru_cache


def is_users_module(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and _is_users(name, getattr(module, "__file__", None) or "")


@lru_cache(maxsize=4096)
def _is_users(name: str, file: str) -> bool:
    root = name.partition(".")[0]
    return root not in sys.stdlib_module_names and root != "elasticflow" and "site-packages" not in file
