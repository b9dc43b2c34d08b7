"""The tests that need a GPU, by file: how many passed, failed, or were skipped because there are too few GPUs.

Where another file cannot be collected, these still run. `-m gpu tests` would collect thousands of others first.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterable

from benchmarks.engine.parts import Device
from benchmarks.gpu.wheels import ROOT
from benchmarks.report import Measured, Row

FILES = (  # with a test marked `gpu`
    "tests/training/test_gpus.py",
    "tests/training/test_two_kinds.py",
    "tests/training/test_training_tasks.py",
    "tests/training/test_task_runners.py",
    "tests/unit/services/executor/test_settings.py",
    "tests/unit/shared/runtime/process/test_local_hardware.py",
)
_TIMEOUT_S = 60  # of a test
_RESULT = re.compile(r"^(tests/.*) (PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS)\b")
_REASON = re.compile(r"^(?:FAILED|ERROR) (tests/\S.*?)(?: - (.*))?$")


def measure_tests(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    """Notes passed and skipped: numbers. failed: what is known of each."""
    command = [
        *(sys.executable, "-m", "pytest", "-v", "-m", "gpu", "-p", "no:cacheprovider", "-rfE", "--color", "no"),
        *("--continue-on-collection-errors", "--timeout", str(_TIMEOUT_S), *FILES),
    ]
    passed, skipped, failed = 0, 0, dict[str, str]()
    note(passed=passed, skipped=skipped, failed=failed)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if match := _RESULT.match(line):
            passed += match[2] == "PASSED"
            skipped += match[2] == "SKIPPED"
            if match[2] in ("FAILED", "ERROR"):
                failed[match[1]] = ""
            note(passed=passed, skipped=skipped, failed=failed)  # the next one may not return
        elif match := _REASON.match(line.rstrip()):
            failed[match[1]] = match[2] or ""
    note(passed=passed, skipped=skipped, failed=failed, exit_code=process.wait())


def rows_of_tests(measured: Measured) -> Iterable[Row]:
    failed = measured["failed"]
    told = f"{len(failed)} failed, " if failed else ""
    beside = f"{measured['skipped']} skipped" if "exit_code" in measured else "not finished"
    yield Row("tests that need a GPU", f"{told}{measured['passed']} passed", beside=beside)
    for name, reason in failed.items():
        yield Row(f"  {name.removeprefix('tests/')}", f"failed: {reason}"[:200])
