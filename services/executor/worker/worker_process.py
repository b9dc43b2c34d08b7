"""A worker's life from the fork to its exit code: log file, channel, training, last words."""

import gc
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

import structlog

from services.executor.worker import training
from services.executor.worker.channel import Channel
from services.executor.worker.checkpoint import Superseded
from services.executor.worker.device import DeviceLost, DeviceUnusable, MemoryExceeded, warm_up
from services.executor.worker.groups import PeerLost
from services.executor.worker.training_function import TrainingFailed
from shared.messages.from_worker import ExitCode, Failed
from shared.messages.to_worker import Assignment, WarmUp

_MAX_TEXT = 16_000  # characters of an error or traceback that travel; the log has all of it

log = structlog.get_logger()


def run_worker(sock: socket.socket) -> NoReturn:
    """Train as the assignment on the channel says, then exit with an `ExitCode`. A spare gets warm before."""
    channel = Channel(sock)
    signal.signal(signal.SIGTERM, lambda *_: channel.request_stop())
    # A process that reads data inherits connections, but not the threads that serve them: to collect one is a crash.
    os.register_at_fork(after_in_child=gc.freeze)

    def elsewhere(work: Callable[[], None]) -> None:
        threading.Thread(target=_end_with, args=(work, channel), name="training", daemon=True).start()

    _end_with(lambda: training.run(_assigned(channel), channel, elsewhere), channel)


def _assigned(channel: Channel) -> Assignment:
    """What the worker is to do, as soon as that is known."""
    order = channel.receive_order()
    while isinstance(order, WarmUp):
        warm_up(order.device, order.gpu_index)
        order = channel.receive_order()
    return order


def _end_with(work: Callable[[], None], channel: Channel) -> NoReturn:
    """Whichever thread does it, the process ends after it."""
    code = _exit_code_of(work, channel)
    log.info("worker_ended", exit_code=code.name)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a broken process group may hang in its destructors


def _exit_code_of(work: Callable[[], None], channel: Channel) -> ExitCode:
    try:
        work()
    except PeerLost as error:
        log.warning("peer_lost", reason=str(error))
        return ExitCode.PEER_LOST
    except MemoryExceeded as error:
        log.warning("memory_exceeded", reason=str(error))
        return ExitCode.OUT_OF_MEMORY
    except (DeviceUnusable, DeviceLost) as error:
        log.error("device_unusable", reason=str(error))
        return ExitCode.DEVICE_UNUSABLE
    except Superseded as error:
        log.warning("superseded", reason=str(error))
        return ExitCode.SUPERSEDED
    except TrainingFailed as error:
        log.error("training_failed", reason=str(error))
        channel.send(Failed(error=str(error)[:_MAX_TEXT], traceback=_cause_of(error)))
        return ExitCode.FAILED
    except BaseException as error:  # whatever the user's code raises, SystemExit included
        text = traceback.format_exc()
        print(text, file=sys.stderr)
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        told = ": ".join(filter(None, (type(error).__name__, str(error))))
        channel.send(Failed(error=told[:_MAX_TEXT] + notes, traceback=text[-_MAX_TEXT:]))
        return ExitCode.FAILED
    return ExitCode.DONE


def _cause_of(error: BaseException) -> str:
    if error.__cause__ is None:
        return ""
    text = "".join(traceback.format_exception(error.__cause__))
    print(text, file=sys.stderr)
    return text[-_MAX_TEXT:]
