"""A runner from its first message to its end: load the function, then execute bundles one after another.

The main thread executes tasks; a second one reads the channel, so that the next bundle is here when one ends, and ends
the process with its executor. An exception fails one task. sys.exit, os._exit or a crash in a task ends the runner; the
executor knows the task under way, since it gets one reply for each task, in order.
"""

import os
import queue
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

import structlog

from elasticflow.services.executor.worker.process.cpu_throttle import CpuThrottle
from elasticflow.services.executor.worker.process.device import (
    DeviceLost,
    DeviceUnusable,
    claim,
    is_out_of_memory,
)
from elasticflow.services.executor.worker.process.log_file import write_output_to
from elasticflow.services.executor.worker.tasks.memory_limit import limit_memory, memory_advice
from elasticflow.services.executor.worker.tasks.task_function import (
    FunctionUnusable,
    encodable,
    execute,
    load_task_function,
    traceback_of,
)
from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, FrameReader, encode_frame
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode
from elasticflow.shared.messages.worker_protocol.task_running import (
    FromRunner,
    RunBundle,
    RunnerFailed,
    RunnerReady,
    RunTasks,
    TaskFailed,
)
from elasticflow.shared.runtime.process.isolation.isolated_process import WorkerFolders
from elasticflow.shared.runtime.process.process_termination import kill_own_process_group

log = structlog.get_logger()


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
