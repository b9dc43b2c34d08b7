"""The function of a padding load: its import by name, and one call of it on pickled bytes."""

import gc
import pickle
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import torch

from elasticflow.services.executor.worker.process.device import DeviceLost, is_device_lost, is_out_of_memory
from elasticflow.services.executor.worker.process.users_module import NotImportable, import_users_module
from elasticflow.services.executor.worker.tasks.memory_limit import memory_advice
from elasticflow.services.executor.worker.tasks.result_file import write_result_file
from elasticflow.shared.errors import Stop
from elasticflow.shared.messages.worker_protocol.task_running import MAX_TASK_BYTES, TaskDone, TaskFailed, too_large

TaskFunction = Callable[[Any], Any]
_MAX_TEXT = 4000  # characters of an error or traceback that are sent


@dataclass(eq=False)
class FunctionUnusable(Stop):
    """The reason tells the user what to change; its cause is what the import raised, if it raised."""

    reason: str

    MESSAGE: ClassVar[str] = "{reason}"


def load_task_function(path: str, code_path: str) -> TaskFunction:
    """path: "package.module:function". code_path: as in `import_users_module`. Raises FunctionUnusable."""
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise FunctionUnusable(f"{path!r} names no function: write it as package.module:function")
    if "<" in name:  # <lambda>, <locals>
        raise FunctionUnusable(f"{path} cannot be imported by name: define it with def at the top of its module")
    try:
        module = import_users_module(module_name, code_path)
    except NotImportable as error:
        raise FunctionUnusable(str(error)) from error.__cause__
    try:
        function = attrgetter(name)(module)
    except AttributeError:
        raise FunctionUnusable(f"module {module_name} has no function {name}: correct the function's name") from None
    if not callable(function):
        raise FunctionUnusable(f"{path} is not callable but of type {type(function).__name__}: name a function")
    return function


def execute(
    function: TaskFunction,
    bundle_id: int,
    index: int,
    task_input: bytes,
    *,
    memory_limit_bytes: int,
    results_folder: str,
) -> TaskDone | TaskFailed:
    """Call the function once. memory_limit_bytes: for the error; 0: no limit. results_folder: for large results.

    Raises SystemExit, DeviceLost.
    """
    began_s = time.perf_counter()
    file_digest = ""
    try:
        result = pickle.dumps(function(pickle.loads(task_input)), pickle.HIGHEST_PROTOCOL)
        if len(result) > MAX_TASK_BYTES and results_folder:
            file_digest, result = write_result_file(Path(results_folder), result), b""
    except SystemExit:
        raise
    except BaseException as error:
        task_s = time.perf_counter() - began_s
        if is_device_lost(error):
            raise DeviceLost(str(error).partition("\n")[0]) from error
        if exceeded := is_out_of_memory(error):
            _free_memory(error)
        message = message_of(error)
        if exceeded and memory_limit_bytes:
            message += f"; {memory_advice(memory_limit_bytes)}"
        return TaskFailed(
            bundle_id=bundle_id,
            index=index,
            error=message,
            traceback=traceback_of(error),
            task_s=task_s,
            ends_runner=isinstance(error, torch.AcceleratorError),
        )
    task_s = time.perf_counter() - began_s
    if len(result) > MAX_TASK_BYTES:
        message = too_large("result", len(result))
        return TaskFailed(bundle_id=bundle_id, index=index, error=message, task_s=task_s)
    return TaskDone(bundle_id=bundle_id, index=index, result=result, file_digest=file_digest, task_s=task_s)


def message_of(error: BaseException) -> str:
    """Its type and words, with its notes. Never raises, even if its __str__ does."""
    return encodable("".join(traceback.format_exception_only(error)).strip())


def traceback_of(error: BaseException) -> str:
    """The end of it, without the frame of the caller."""
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    return encodable("".join(traceback.format_exception(error))[-_MAX_TEXT:])


def encodable(text: str) -> str:
    """The text as a message can carry it: bounded, and without the surrogates of file names that are not UTF-8."""
    return text[:_MAX_TEXT].encode("utf-8", errors="replace").decode()


def _free_memory(error: BaseException) -> None:
    """Drop what the failed task held, so that the report of its failure has memory."""
    traceback.clear_frames(error.__traceback__)
    gc.collect()
