"""A runner from its first message to its end: load the function, then execute bundles one after another.

The main thread executes tasks; a second one reads the channel, so that the next bundle is here when one ends, and ends
the process with its executor. An exception fails one task. sys.exit, os._exit or a crash in a task ends the runner; the
executor knows the task under way, since it gets one reply for each task, in order.
"""

import gc
import hashlib
import os
import pickle
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch

from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle, limit_memory, memory_advice
from elasticflow.services.executor.worker.process.device import (
    DeviceLost,
    DeviceUnusable,
    claim,
    is_device_lost,
    is_out_of_memory,
)
from elasticflow.services.executor.worker.process.log_file import write_output_to
from elasticflow.services.executor.worker.process.users_code import NotImportable, import_users_module
from elasticflow.services.executor.worker.process.users_process import waits_for_person
from elasticflow.shared.errors import Stop
from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, FrameReader, encode_frame
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode
from elasticflow.shared.messages.worker_protocol.task_running import (
    MAX_TASK_BYTES,
    FromRunner,
    RunBundle,
    RunnerFailed,
    RunnerReady,
    RunTasks,
    TaskDone,
    TaskFailed,
    too_large,
)
from elasticflow.shared.runtime.process.clock import fresh_id
from elasticflow.shared.runtime.process.files import rename_durably, write_durably
from elasticflow.shared.runtime.process.isolation.isolated_process import WorkerFolders
from elasticflow.shared.runtime.process.logs import log
from elasticflow.shared.runtime.process.process_termination import kill_own_process_group

# --- result file ---------------------------------------------------------------------------------------
# Large results of padding tasks: files in the data folder of the pool, named by their content.


def write_result_file(folder: Path, result: bytes) -> str:
    """Store the result unless an equal one is there; its SHA-256, the name of its file. Raises OSError.

    A file of this name is complete: it is written under another one, and renamed.
    """
    digest = hashlib.sha256(result).hexdigest()
    if (folder / digest).exists():
        return digest
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{digest}.{fresh_id()}.unfinished"
    try:
        write_durably(unfinished, result)
        rename_durably(unfinished, folder / digest)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    return digest


# --- task function -------------------------------------------------------------------------------------
# The function of a padding load: its import by name, and one call of it on pickled bytes.

TaskFunction = Callable[[Any], Any]
_WITHOUT_PERSON = "let its input say what it asks for, or call the function on your own machine to debug it"
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
        if waits := waits_for_person(error):
            message = f"{waits}, and a task has no terminal: {_WITHOUT_PERSON}"
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


# --- run tasks -----------------------------------------------------------------------------------------


def run_tasks(sock: socket.socket, order: RunTasks, received: bytes, folders: WorkerFolders) -> NoReturn:
    """received: the bytes that were already read from the channel; they begin with the order."""
    folders.show(readable=[order.code_path], writable=[str(Path(order.log_file).parent), order.results_folder])
    folders.close()
    write_output_to(Path(order.log_file))
    channel = RunnerChannel(sock, received)
    try:
        code = _exit_code_of(order, channel)
    except SystemExit as request:
        code = _requested_code(request)
    except DeviceLost as error:
        log.error("device_lost", reason=str(error))
        code = ExitCode.DEVICE_UNUSABLE
    except BaseException:  # e.g. no memory is left to report a failure
        traceback.print_exc()
        code = ExitCode.FAILED
    log.info("runner_ended", load_id=order.load_id, exit_code=code)
    sys.stdout.flush()
    os._exit(code)  # as a worker ends: the user's threads and handlers may hang


def _exit_code_of(order: RunTasks, channel: "RunnerChannel") -> ExitCode:
    """Returns when no further task can be executed. SystemExit of a task leaves it."""
    try:
        if order.device == "cpu":
            os.nice(order.cpu_niceness)
        claim(order.device, order.gpu_index)
        if order.memory_limit_bytes and order.device == "cpu":
            limit_memory(order.memory_limit_bytes)
        function = load_task_function(order.function, order.code_path)
    except DeviceUnusable as error:
        log.error("device_unusable", reason=str(error))
        return ExitCode.DEVICE_UNUSABLE
    except FunctionUnusable as error:
        channel.send(_failure_of(error, order))
        return ExitCode.FAILED
    channel.send(RunnerReady())
    pid, cpu_throttle = os.getpid(), CpuThrottle(order.cpu_share)
    while True:
        bundle = channel.next_bundle()
        for index, task_input in bundle.tasks:
            outcome = execute(
                function,
                bundle.bundle_id,
                index,
                task_input,
                memory_limit_bytes=order.memory_limit_bytes,
                results_folder=order.results_folder,
            )
            if os.getpid() != pid:  # a process that the task has forked, and that returned from it
                os._exit(0)
            channel.send(outcome)
            cpu_throttle.sleep_off_excess()
            if isinstance(outcome, TaskFailed) and outcome.ends_runner:
                return ExitCode.FAILED


def _failure_of(error: FunctionUnusable, order: RunTasks) -> RunnerFailed:
    cause, reason = error.__cause__, encodable(str(error))
    if cause is not None and is_out_of_memory(cause) and order.memory_limit_bytes:
        reason += f"; {memory_advice(order.memory_limit_bytes)}"
    text = "" if cause is None else traceback_of(cause)
    log.error("function_unusable", reason=reason, traceback=text)
    return RunnerFailed(error=reason, traceback=text)


def _requested_code(request: SystemExit) -> int:
    """The exit code that Python gives a process for it."""
    if request.code is None or isinstance(request.code, int):
        return (request.code or 0) & 0xFF
    print(request.code, file=sys.stderr)
    return 1


class RunnerChannel:
    """The runner's end of its channel: one thread reads, the main thread writes."""

    def __init__(self, sock: socket.socket, received: bytes) -> None:
        self._socket = sock
        self._bundles: queue.SimpleQueue[RunBundle] = queue.SimpleQueue()
        os.register_at_fork(after_in_child=sock.close)  # a task's processes must not hold the channel open
        threading.Thread(target=self._read, args=(received,), name="channel", daemon=True).start()

    def send(self, message: FromRunner) -> None:
        """Ends this process if the executor is gone."""
        try:
            self._socket.sendall(encode_frame(message))
        except OSError:
            kill_own_process_group()

    def next_bundle(self) -> RunBundle:
        """Waits without a timeout: the process ends with its channel."""
        return self._bundles.get()

    def _read(self, received: bytes) -> None:
        frames = FrameReader[RunTasks | RunBundle](RunTasks, RunBundle)
        try:
            while received:
                for message in frames.feed(received):
                    if isinstance(message, RunBundle):
                        self._bundles.put(message)
                received = self._receive()
        except BrokenChannel as error:
            os.write(2, f"this runner cannot decode a message of its executor, and exits: {error}\n".encode())
            os._exit(ExitCode.UNREADABLE)
        kill_own_process_group()

    def _receive(self) -> bytes:
        """The next bytes; empty at the end of the file."""
        try:
            return self._socket.recv(65_536)
        except OSError:
            return b""
