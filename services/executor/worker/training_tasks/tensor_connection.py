"""A TCP connection between a training manager and a runner, which carries fields and tensors.

A message is a length (4 bytes, big-endian), msgpack `[fields, [[shape, type], ...]]`, and the bytes of the tensors. No
code is read from it. Both ends prove that they know a secret before any message travels; the bytes are not encrypted.
"""

import contextlib
import hmac
import secrets
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast

import msgpack
import torch

from elasticflow.services.executor.worker.group.state_transfer import bytes_of
from elasticflow.services.executor.worker.training_tasks.task_steps import Contribution

_LENGTH = struct.Struct(">I")
_MAX_HEAD_BYTES = 64 << 20
_BUFFER_BYTES = 1 << 16
_NONCE_BYTES = 32

_pack = cast(Callable[[object], bytes], msgpack.packb)
_unpack = cast(Callable[..., Any], msgpack.unpackb)


class TensorConnection:
    """secret: hexadecimal digits. timeout_s: of each wait for bytes. Owns the socket.

    Raises OSError in all operations: ConnectionError if the other end is gone or does not know the secret.
    """

    def __init__(self, sock: socket.socket, secret: str, *, is_manager: bool, timeout_s: float) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = sock
        self._reader = cast(BinaryIO, sock.makefile("rb", buffering=_BUFFER_BYTES))
        self._writer = sock.makefile("wb", buffering=_BUFFER_BYTES)
        sock.settimeout(timeout_s)
        try:
            self._authenticate(bytes.fromhex(secret), is_manager)
        except BaseException:
            self.close()
            raise

    def wait_without_timeout(self) -> None:
        """Wait without a timeout from now on: the other end may be idle."""
        self._socket.settimeout(None)

    def send(self, fields: Mapping[str, Any], tensors: Sequence[torch.Tensor] = ()) -> None:
        kinds = [(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for tensor in tensors]
        head = _pack([fields, kinds])
        self._writer.write(_LENGTH.pack(len(head)) + head)
        for tensor in tensors:
            self._writer.write(bytes_of(tensor.cpu().contiguous()).numpy())
        self._writer.flush()

    def receive(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """The fields and the tensors, on the CPU."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > _MAX_HEAD_BYTES:
            raise ConnectionError(f"a message begins with {length:,} bytes, above {_MAX_HEAD_BYTES:,}")
        fields, kinds = _unpack(self._read(length), strict_map_key=False)
        return fields, [self._read_tensor(shape, getattr(torch, dtype)) for shape, dtype in kinds]

    def close(self) -> None:
        """No other thread uses it."""
        self._reader.close()
        with contextlib.suppress(OSError):  # the other end has closed it
            self._writer.close()
        self._socket.close()

    def _read_tensor(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        self._read_into(bytes_of(tensor).numpy().data)
        return tensor

    def _read(self, num_bytes: int) -> bytes:
        data = bytearray(num_bytes)
        self._read_into(memoryview(data))
        return bytes(data)

    def _read_into(self, view: memoryview) -> None:
        while view:
            num_bytes = self._reader.readinto(view)  # pyright: ignore[reportAttributeAccessIssue]
            if not num_bytes:
                raise ConnectionError("the other end has closed the connection")
            view = view[num_bytes:]

    def _authenticate(self, secret: bytes, is_manager: bool) -> None:
        """Each end proves its own role, so that no proof of one connection serves in another."""
        mine = secrets.token_bytes(_NONCE_BYTES)
        self._write(mine)
        self._write(_proof(secret, is_manager, self._read(_NONCE_BYTES)))
        if not hmac.compare_digest(self._read(_NONCE_BYTES), _proof(secret, not is_manager, mine)):
            raise ConnectionError("the other end does not know the secret of this training")

    def _write(self, data: bytes) -> None:
        self._writer.write(data)
        self._writer.flush()


def _proof(secret: bytes, is_manager: bool, nonce: bytes) -> bytes:
    return hmac.digest(secret, (b"manager" if is_manager else b"runner") + nonce, "sha256")


# --- A contribution as the fields and tensors of one message, and back ---------------------------------


def contribution_message(contribution: Contribution) -> tuple[dict[str, Any], list[torch.Tensor]]:
    gradients = contribution.gradients
    changed = [sorted(each.items()) for each in contribution.changed]
    fields = {
        "has_gradient": [gradient is not None for gradient in gradients],
        "changed": [[index for index, _ in each] for each in changed],
        "metrics": [dict(each) for each in contribution.metrics],
        "is_over": contribution.is_over,
    }
    tensors = [gradient for gradient in gradients if gradient is not None]
    return fields, tensors + [value for each in changed for _, value in each]


def contribution_in(fields: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> Contribution:
    received: Iterator[torch.Tensor] = iter(tensors)
    return Contribution(
        gradients=[next(received) if has_gradient else None for has_gradient in fields["has_gradient"]],
        changed=[{index: next(received) for index in indices} for indices in fields["changed"]],
        metrics=fields["metrics"],
        is_over=fields["is_over"],
    )
