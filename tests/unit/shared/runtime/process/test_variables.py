"""Mistyped names of variables are refused; all names that the product reads are known."""

import re
from pathlib import Path

import pytest

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.runtime.process.variables import VARIABLES, check_names

_ROOT = Path(__file__).parents[5]
_NAME = re.compile(r"\bEF_[A-Z_]*[A-Z]\b")


def test_a_name_that_is_nearly_that_of_a_setting_is_refused() -> None:
    with pytest.raises(BadSettings) as wrong:
        check_names({"EF_TENNANT": "lab", "EF_LOGLEVEL": "debug", "EF_POOL": "a"})
    assert wrong.value.problems == (
        "EF_LOGLEVEL: no setting has this name; did you mean EF_LOG_LEVEL?",
        "EF_TENNANT: no setting has this name; did you mean EF_TENANT?",
    )


def test_variables_of_other_programs_and_of_a_job_are_left_alone() -> None:
    check_names({"EF_CORE_MIGRATIONS": "1", "EF_FAULT_SEEDS": "1", "HOME": "/"})
    check_names({"EF_WORKER": "1", "EF_DATA_FOLDER": "/data of that name"})


def test_every_variable_that_the_product_reads_is_known() -> None:
    files = [f for name in ("elasticflow", "services", "shared", "simulator") for f in (_ROOT / name).rglob("*.py")]
    read = {name for file in files for name in _NAME.findall(file.read_text())}
    assert read <= set(VARIABLES)


def test_no_variable_of_a_test_or_benchmark_is_mistaken() -> None:
    files = [
        f
        for name in ("testbed", "tests", "benchmarks", "deploy")
        for f in (_ROOT / name).rglob("*.[pys]*")
        if f.is_file()
    ]
    named = {name for file in files if file.suffix != ".pyc" for name in _NAME.findall(file.read_text())}
    check_names(dict.fromkeys(named - {"EF_TENNANT", "EF_LOGLEVEL", "EF_DATA_FOLDER", "EF_WORKER"}, ""))
