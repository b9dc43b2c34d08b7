"""The `eflow` command. Each module here holds the commands that its name says."""

import atexit
import os
import signal
import sys
from typing import NoReturn

from elasticflow.shared.library_imports import INTERRUPTED, NOTHING_DONE, ending_at_interrupt, without_gc
from elasticflow.shared.runtime.process.standard_streams import forget_stdout, prepare_standard_streams


def main() -> None:
    """Entry point of `eflow` and `python -m elasticflow`."""
    prepare_standard_streams()
    try:
        with ending_at_interrupt(NOTHING_DONE), without_gc():
            from elasticflow.cli.app import app

        try:
            app(prog_name="eflow")
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        _end_interrupted()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            _end_interrupted()
        raise
    except RuntimeError as error:  # Python 3.11 raises it instead, for Ctrl-C while a library defines a class
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        _end_interrupted()
    except BrokenPipeError:
        forget_stdout()
        sys.exit(0)
    except OSError as error:  # of the output: help, say, is printed before any command runs
        forget_stdout()
        print(f"eflow: standard output: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)


def _end_interrupted() -> NoReturn:
    """End with the exit code of Ctrl-C. Python would end itself by the signal, if it came while a library made a class
    out of a text, and print a traceback for another Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(INTERRUPTED)
