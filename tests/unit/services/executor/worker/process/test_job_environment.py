"""What a worker sets and imports from, for its job."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from elasticflow.services.executor.worker.process import users_code
from elasticflow.services.executor.worker.process.users_code import (
    enter_code,
    enter_environment,
    import_users_module,
    without_own_secrets,
)
from elasticflow.shared.messages.job_environment import without_secrets
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan
from testbed.histories import spec


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(users_code, "_secret_values", [])


def assignment(code_path: str, packages_path: str = "", **of_spec) -> Assignment:
    return Assignment(
        job_id="a",
        plan=GenerationPlan(generation=1, world_size=1),
        rank=0,
        spec=spec(**of_spec),
        checkpoint_dir="/checkpoints",
        code_path=code_path,
        packages_path=packages_path,
    )


def test_code_comes_before_packages_and_packages_before_the_node(tmp_path):
    for folder in ("code/jobs", "code", "packages"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "ef_where.py").write_text(f"FOLDER = {folder!r}")
    (tmp_path / "code" / "ef_top.py").write_text("FOLDER = 'code'")
    (tmp_path / "packages" / "ef_required.py").write_text("FOLDER = 'packages'")
    before = [*sys.path]
    job = assignment(str(tmp_path / "code"), str(tmp_path / "packages"), import_folder="jobs")
    entered = enter_code(enter_environment(job))
    assert entered.code_path == str(tmp_path / "code" / "jobs")
    found = [import_users_module(name, entered.code_path).FOLDER for name in ("ef_where", "ef_top", "ef_required")]
    assert found == ["code/jobs", "code", "packages"]
    assert sys.path[-len(before) :] == before
    for name in ("ef_where", "ef_top", "ef_required"):
        del sys.modules[name]


def test_a_job_without_an_environment_changes_nothing():
    path, variables = [*sys.path], {**os.environ}
    plain = assignment("/code")
    assert enter_code(enter_environment(plain)) is plain
    assert (sys.path, {**os.environ}) == (path, variables)


def test_variables_are_set():
    enter_environment(assignment("", environment={"EFTEST_COLOUR": "blue"}))
    assert os.environ["EFTEST_COLOUR"] == "blue"


def test_secrets_are_variables_that_no_message_shows():
    given = replace(
        assignment("/code"), secrets={"EFTEST_TOKEN": "value-1", "EFTEST_LONG": "value-12", "EFTEST_PIN": "1"}
    )
    assert "value-1" not in repr(given)
    entered = enter_environment(given)
    assert (os.environ["EFTEST_TOKEN"], os.environ["EFTEST_PIN"], entered.secrets) == ("value-1", "1", {})
    assert without_own_secrets("401: value-12 and value-1 at line 1") == "401: *** and *** at line 1"


KEY = '{"id": "robot\'s \\ own",\n "key": "-----BEGIN-----\\nÄbc\\n"}\n'


def in_an_error(value: str) -> str:
    return str(FileNotFoundError(2, "none", f'"{value}"'))


@pytest.mark.parametrize("shown", [repr, json.dumps, str, in_an_error])
def test_no_quoted_form_of_a_secret_is_shown(shown: Callable[[str], str]):
    text = without_secrets(f"cannot open {shown(KEY)} there", [KEY])
    assert text.startswith("cannot open ")
    assert text.endswith(" there")
    assert not [part for part in ("robot", "BEGIN", "bc") if part in text]


def test_a_line_of_a_secret_is_not_shown_alone():
    first, second = KEY.splitlines()
    assert without_secrets(f"{first!r}\n{second}", [KEY]) == "'***'\n***"
    assert without_secrets("{\n}", ["{\n1\n}"]) == "{\n}", "lines that anybody writes"
