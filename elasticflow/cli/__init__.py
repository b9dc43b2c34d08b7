"""The `eflow` command. Each module here holds the commands that its name says."""

import sys

from elasticflow.shared.library_imports import INTERRUPTED, ending_at_interrupt, without_gc
from elasticflow.shared.runtime.process.standard_streams import forget_stdout, prepare_standard_streams


def main() -> None:
    """Entry point of `eflow` and `python -m elasticflow`."""
    prepare_standard_streams()
    try:
        with ending_at_interrupt(), without_gc():
            from elasticflow.cli.app import app

        try:
            app(prog_name="eflow")
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except RuntimeError as error:  # Python 3.11 raises it instead, for Ctrl-C while a library defines a class
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        forget_stdout()
        sys.exit(0)
    except OSError as error:  # of the output: help, say, is printed before any command runs
        forget_stdout()
        print(f"eflow: standard output: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
