"""`PaddingExecutor` with a load that is executed in this process: futures, shutdown, and loads that end early."""

import gc
import operator
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, wait
from dataclasses import replace
from typing import Any

import pytest

from elasticflow import LoadNotOpened, LoadWasCancelled, PackagingFailed, PaddingExecutor, TaskError
from elasticflow.client.loads import value_of
from elasticflow.sdk import padding_executor
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.padding_tasks import TaskResult

TIMEOUT_S = 60.0
NOT_OPENED = LoadNotOpened("load", "it does not pay")


class LocalLoads:
    """Stands in for `LoadResults`: executes the inputs in this process, while `gate` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.fails_with: Exception | None = None
        self.unreadable = -1  # the index of a result
        self.specs: list[LoadSpec] = []
        self.ended = threading.Event()

    def __call__(
        self, _endpoint: Any, _tenant: str, spec: LoadSpec, _code: Any, load_id: str, inputs: Iterable[bytes]
    ) -> "LocalResults":
        self.specs.append(spec)
        return LocalResults(self, inputs)


class LocalResults:
    def __init__(self, loads: LocalLoads, inputs: Iterable[bytes]) -> None:
        self._loads, self._inputs, self._is_closed = loads, inputs, False

    def __iter__(self) -> Iterator[TaskResult]:
        for index, task_input in enumerate(self._inputs):
            self._loads.gate.wait()
            if self._is_closed:
                return
            if self._loads.fails_with is not None:
                raise self._loads.fails_with
            result = outcome(index, lambda data=task_input: padding_executor.call(data))
            yield replace(result, value=b"not a pickle") if index == self._loads.unreadable else result
        self._loads.ended.set()

    def value_of(self, result: TaskResult) -> Any:
        return value_of(result, None)

    def close(self) -> None:
        self._is_closed = True
        self._loads.gate.set()


def outcome(index: int, function: Callable[[], Any]) -> TaskResult:
    try:
        return TaskResult(index=index, value=pickle.dumps(function()), attempts=1, task_s=0.0, node_id="n")
    except Exception as error:
        return TaskResult(index=index, error=repr(error), attempts=3, task_s=0.0, node_id="n")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> LocalLoads:
    loads = LocalLoads()
    monkeypatch.setattr(padding_executor, "LoadResults", loads)
    return loads


def executor(**options: Any) -> PaddingExecutor:
    return PaddingExecutor(nats_url="nats://nowhere", **options)


def own(x: int) -> int:
    return x


def test_futures_have_the_results(loads):
    with executor(task_s=2.0, max_attempts=5) as pool:
        assert pool.submit(operator.add, 1, 2).result(TIMEOUT_S) == 3
        assert pool.submit(int, "11", base=2).result(TIMEOUT_S) == 3
        assert list(pool.map(operator.mul, range(5), range(5), timeout=TIMEOUT_S, chunksize=2)) == [0, 1, 4, 9, 16]
    assert loads.ended.is_set(), "the load is sealed"
    (spec,) = loads.specs
    assert (spec.task_function, spec.code_digest) == ("elasticflow.sdk.padding:call", "")
    assert (spec.task_s, spec.max_attempts) == (2.0, 5)


def test_the_code_of_the_first_function_is_sent(loads):
    with executor() as pool:
        pool.submit(own, 1).exception(TIMEOUT_S)
    assert loads.specs[0].code_digest


def test_a_failed_task_and_an_unreadable_result_fail_their_futures_only(loads):
    loads.unreadable = 1
    with executor() as pool:
        failed, unread, fine = (pool.submit(operator.floordiv, 6, divisor) for divisor in (0, 1, 2))
    error = failed.exception()
    assert isinstance(error, TaskError)
    assert (error.index, error.attempts) == (0, 3)
    assert isinstance(unread.exception(), pickle.UnpicklingError)
    assert fine.result() == 3


def test_a_future_can_be_cancelled_until_its_call_is_sent(loads):
    loads.gate.clear()
    pool = executor()
    sent, waiting, last = (pool.submit(operator.add, number, 1) for number in range(3))
    while not sent.running():
        wait([sent], 0.01)
    assert not sent.cancel()
    assert waiting.cancel()
    loads.gate.set()
    assert wait([sent, waiting, last], TIMEOUT_S).not_done == set()
    assert (sent.result(), last.result(), waiting.cancelled()) == (1, 3, True)
    pool.shutdown()


def test_a_shutdown_may_cancel_what_is_not_sent(loads):
    loads.gate.clear()
    pool = executor()
    sent, waiting = pool.submit(operator.add, 1, 1), pool.submit(operator.add, 1, 2)
    while not sent.running():
        wait([sent], 0.01)
    pool.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(CancelledError):
        waiting.result(TIMEOUT_S)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(operator.add, 1, 1)
    loads.gate.set()
    pool.shutdown()
    assert sent.result() == 2


def test_an_executor_without_calls_opens_no_load(loads):
    with executor(), pytest.raises(PackagingFailed), executor() as pool:
        pool.submit(lambda: 1)
    assert loads.specs == []


def test_all_futures_of_a_load_that_fails_have_the_cause(loads):
    loads.gate.clear()
    loads.fails_with = NOT_OPENED
    pool = executor()
    futures = [pool.submit(operator.add, number, 1) for number in range(3)]
    loads.gate.set()
    assert [future.exception(TIMEOUT_S) for future in futures] == [NOT_OPENED] * 3
    with pytest.raises(BrokenExecutor, match="it does not pay") as raised:
        pool.submit(operator.add, 1, 1)
    assert raised.value.__cause__ is NOT_OPENED
    pool.shutdown()


@pytest.mark.parametrize("how", ["cancel", "Ctrl-C"])
def test_a_cancelled_load_fails_its_futures(how, loads):
    loads.gate.clear()
    pool = executor()
    future = pool.submit(operator.add, 1, 1)
    while not future.running():
        wait([future], 0.01)
    if how == "cancel":
        pool.cancel()
    else:
        with pytest.raises(KeyboardInterrupt), pool:
            raise KeyboardInterrupt
    assert isinstance(future.exception(TIMEOUT_S), LoadWasCancelled)


def test_an_executor_that_is_dropped_ends_its_load(loads):
    future = executor().submit(operator.add, 1, 1)
    gc.collect()
    assert future.result(TIMEOUT_S) == 2
    assert loads.ended.wait(TIMEOUT_S)
