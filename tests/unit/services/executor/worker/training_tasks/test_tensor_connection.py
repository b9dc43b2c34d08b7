"""The connection between manager and runner: authentication, and all kinds of tensors."""

import secrets
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from elasticflow.services.executor.worker.training_tasks.tensor_connection import TensorConnection

SECRET = secrets.token_hex(32)


def connected(manager_secret: str, runner_secret: str, *, both_manage: bool = False) -> list[Any]:
    """Both ends, or their errors."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ThreadPoolExecutor(2) as pool:
        ends = [
            pool.submit(TensorConnection, ours, manager_secret, is_manager=True, timeout_s=10.0),
            pool.submit(TensorConnection, theirs, runner_secret, is_manager=both_manage, timeout_s=10.0),
        ]
        return [end.exception() or end.result() for end in ends]


def test_fields_and_tensors_arrive_with_all_their_bits() -> None:
    manager, runner = connected(SECRET, SECRET)
    transposed = torch.arange(6.0).reshape(2, 3).T
    tensors = [
        torch.tensor(float("nan")),
        torch.randn(3, 4, dtype=torch.bfloat16),
        torch.zeros(0, 7),
        torch.tensor([True, False]),
        torch.randn(300_000, dtype=torch.float64),
        transposed,
        torch.tensor(-5, dtype=torch.long),
    ]
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(manager.send, {"step": 7, "metrics": [{"loss": 0.1 + 0.2}], 3: None}, tensors)
        fields, received = runner.receive()
        sent.result()
    assert fields == {"step": 7, "metrics": [{"loss": 0.1 + 0.2}], 3: None}
    assert [tensor.dtype for tensor in received] == [tensor.dtype for tensor in tensors]
    for tensor, original in zip(received, tensors, strict=True):
        torch.testing.assert_close(tensor, original, rtol=0, atol=0, equal_nan=True)
    manager.close()
    with pytest.raises(ConnectionError, match="has closed the connection"):
        runner.receive()
    runner.close()


@pytest.mark.parametrize("both_manage", [False, True])
def test_an_end_without_the_secret_gets_nothing(both_manage: bool) -> None:
    """Two managers: a proof that was made for one role does not serve in the other."""
    other = SECRET if both_manage else secrets.token_hex(32)
    for error in connected(SECRET, other, both_manage=both_manage):
        assert isinstance(error, ConnectionError)
        assert "does not know the secret" in str(error)
