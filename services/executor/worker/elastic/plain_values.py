"""Values that workers send each other, as bytes whose reader runs no code from them: those that a checkpoint may hold.

A worker's peers are not proven to be its peers: gloo authenticates no connection.
"""

import io
from typing import Any

import torch

from elasticflow.services.executor.worker.elastic.nested_tensors import TensorPlaceholder

# For the whole process: permission for a time would end that of another thread.
torch.serialization.add_safe_globals([TensorPlaceholder])


def encode_value(value: Any) -> bytes:
    """Numbers, texts, tensors, torch's types, and dicts, lists and tuples of them, with placeholders for tensors."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def decode_value(content: bytes) -> Any:
    """Raises pickle.UnpicklingError for any other value."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
