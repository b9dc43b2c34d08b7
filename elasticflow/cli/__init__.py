"""The `eflow` command. Each module here holds the commands that its name says."""

import sys


def main() -> None:
    """Entry point of `eflow` and `python -m elasticflow`."""
    try:
        from elasticflow.cli.app import app  # inside: Ctrl-C while libraries load is no traceback either

        app(prog_name="eflow")
    except KeyboardInterrupt:
        sys.exit(130)
