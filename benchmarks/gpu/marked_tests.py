"""The tests that need a GPU: how many passed, failed, or were skipped because there are too few GPUs."""

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.report import Measured, Row


def measure_tests(where: str = "tests") -> Measured:
    """failed: their names and first lines."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", where, f"--junitxml={report}"]
        subprocess.run(command, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    failures = {
        f"{case.get('classname')}::{case.get('name')}": (found.get("message") or "").partition("\n")[0]
        for case in cases
        for found in (*case.findall("failure"), *case.findall("error"))
    }
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {"passed": len(cases) - skipped - len(failures), "skipped": skipped, "failed": failures}


def rows(measured: Measured) -> Iterable[Row]:
    failed = f"{len(measured['failed'])} failed, " if measured["failed"] else ""
    yield Row("tests that need a GPU", f"{failed}{measured['passed']} passed", beside=f"{measured['skipped']} skipped")
