"""Types that user code and workers pass to each other. Needs no torch: a client describes jobs without it."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

OnStep = Callable[[int, Mapping[str, float]], None]  # iteration: steps done; metrics: means over the global batch


class Stateful(Protocol):
    """An object whose state a job keeps: tensors and plain numbers. A model, an optimizer, a schedule."""

    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...
