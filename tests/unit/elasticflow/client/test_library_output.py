"""A program that uses this library has its standard output for itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.installation import ROOT

# Reads a pool with a snapshot; with "damaged", one that differs from what the ledger names.
PROGRAM = """
import asyncio
import sys

from elasticflow.client.ledger import LedgerView
from elasticflow.shared.runtime.bus import streams
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.state.pool import PoolState


async def main():
    bus = MemoryBus()
    await bus.ensure_pool("lab")
    saved = snapshot_store.Snapshot(state=PoolState(sequence=0), chain="00" * 16)
    await snapshot_store.save(bus, "lab", saved, 0.0)
    if "damaged" in sys.argv:
        bucket = streams.snapshot_bucket("lab")
        for name in list(bus.broker.objects[bucket]):
            await bus.put_object(bucket, name, b"damaged")
    await LedgerView(bus, "lab").state()
    print("the program's own line")


asyncio.run(main())
"""
RUN = "asyncio.run(main())"
CONFIGURED = """
import sys
import structlog

structlog.configure(processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.PrintLoggerFactory())
"""


def ran(program: str, folder: Path, *arguments: str) -> tuple[list[str], str]:
    """The lines of standard output, and standard error."""
    file = folder / "program.py"
    file.write_text(program)
    ended = subprocess.run(
        [sys.executable, file, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines(), ended.stderr


def test_a_client_writes_nothing_to_the_output_of_its_program(tmp_path: Path) -> None:
    assert ran(PROGRAM, tmp_path) == (["the program's own line"], "")


def test_a_warning_of_a_client_goes_to_standard_error(tmp_path: Path) -> None:
    output, errors = ran(PROGRAM, tmp_path, "damaged")
    assert output == ["the program's own line"]
    assert "snapshot not used" in errors


@pytest.mark.parametrize("program", [CONFIGURED + PROGRAM, PROGRAM.replace(RUN, CONFIGURED + RUN)])
def test_a_program_that_configures_structlog_has_the_lines_where_it_wants_them(program: str, tmp_path: Path) -> None:
    output, errors = ran(program, tmp_path)
    assert '"event": "snapshot loaded"' in output[0]
    assert (output[1:], errors) == (["the program's own line"], "")
