"""Variables and packages that a job asks for."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from elasticflow.shared.messages.codec import decode, encode, validate
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.job_environment import (
    DATA_NAMES_OF_OURS,
    MAX_VARIABLES,
    OwnEnvironment,
    SealedSecret,
    is_ours,
    local_path,
)
from elasticflow.shared.messages.job_spec import JobSpec
from testbed.histories import spec

DATA = {"train": "s3://bucket/train", "test": "file:///mnt/test%20set"}


def problems(changed: JobSpec) -> tuple[str, ...]:
    return validate(SubmitJob(job_id="a", tenant="lab", spec=changed))


@pytest.mark.parametrize(
    "name",
    ["RANK", "WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "EF_POOL", "NATS_URL", "LD_PRELOAD", "PYTHONPATH"],
)
def test_a_variable_of_the_pool_is_refused_by_name(name: str) -> None:
    (problem,) = problems(spec(environment={"MINE": "1", name: "2"}))
    assert problem.startswith(f"spec.environment: must be without {name}, which the pool sets for its workers")


def test_a_refused_secret_is_named_and_not_shown() -> None:
    (problem,) = problems(spec(secrets=(SealedSecret(name="EF_POOL", sealed="AAAA" * 30),)))
    assert problem == "spec.secrets: must be without EF_POOL, which the pool sets for its workers"


@pytest.mark.parametrize("name", ["TORCH_HOME", "HF_HOME", "RANKS", "MY_RANK", "PATH", "WANDB_MODE"])
def test_other_variables_are_permitted(name: str) -> None:
    assert not is_ours(name)
    assert problems(spec(environment={name: "a=b\nc"})) == ()


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"a b": "1"}, "must be a name of letters, digits and _"),
        ({"A": "\0"}, "must be without null characters"),
        ({"A": "x" * 9_000, "B": "x" * 9_000}, "must be at most 16,384 bytes, and has 18,002"),
        ({f"A{number}": "" for number in range(MAX_VARIABLES + 1)}, "at most 64 items"),
    ],
)
def test_names_and_sizes_have_limits(environment: dict[str, str], said: str) -> None:
    assert said in problems(spec(environment=environment))[0]


@pytest.mark.parametrize(
    ("requirements", "said"),
    [(("a\nb",), "control characters"), (("x" * 1_900,) * 10, "must be at most 16,384 bytes, and has 19,000")],
)
def test_requirements_have_limits(requirements: tuple[str, ...], said: str) -> None:
    assert said in problems(spec(requirements=requirements))[0]


def test_a_job_keeps_its_environment_on_the_wire_and_an_older_one_has_none() -> None:
    job = spec(environment={"MINE": "1"}, requirements=("einops>=0.8",), import_folder="src/jobs")
    command = SubmitJob(job_id="a", tenant="lab", spec=job)
    assert decode(encode(command, id="1", recorded_at_s=0.0)).message == command
    assert (spec().environment, spec().requirements, spec().import_folder) == ({}, (), "")


def test_jobs_share_a_profile_only_in_the_same_environment() -> None:
    job = spec(model_name="")
    others = [replace(job, environment={"FAST": "1"}), replace(job, requirements=("einops",)), replace(job, data=DATA)]
    own = [OwnEnvironment(), OwnEnvironment(python="3.12"), OwnEnvironment(requirements=("einops",))]
    others += [replace(job, own_environment=each) for each in own]
    assert len({each.profile_key for each in (job, *others)}) == 7
    named = spec(model_name="net")
    assert replace(named, environment={"FAST": "1"}).profile_key == named.profile_key


def test_a_job_keeps_its_own_environment_on_the_wire_and_an_older_one_has_none() -> None:
    own = OwnEnvironment(python="3.12", requirements=("numpy<2",), constraints=("numpy==1.26.4",))
    command = SubmitJob(job_id="a", tenant="lab", spec=spec(own_environment=own))
    assert decode(encode(command, id="1", recorded_at_s=0.0)).message == command
    assert command.spec.needs_preparation
    assert spec().own_environment is None
    assert not spec().needs_preparation


@pytest.mark.parametrize("python", ["3.10", "3.14", "3", "3.12 ", "--help", "/usr/bin/python3.12"])
def test_an_environment_has_a_python_that_workers_run_on(python: str) -> None:
    (problem,) = problems(spec(own_environment=OwnEnvironment(python=python)))
    assert problem.startswith("spec.own_environment.python: ")


def test_packages_are_in_an_own_environment_or_beside_those_of_the_node() -> None:
    with pytest.raises(ValueError, match="in its own environment, or as requirements, not both"):
        spec(own_environment=OwnEnvironment(), requirements=("einops",))


def test_a_job_keeps_its_data_on_the_wire_and_an_older_one_has_none() -> None:
    command = SubmitJob(job_id="a", tenant="lab", spec=spec(data=DATA))
    assert decode(encode(command, id="1", recorded_at_s=0.0)).message == command
    assert spec().data == {}
    assert [local_path(uri) for uri in DATA.values()] == [None, "/mnt/test set"]
    assert [spec(data={"a": uri}).needs_preparation for uri in DATA.values()] == [True, False]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"a-b": "s3://b"}, "must be a name of letters, digits and _"),
        ({"a": "/path"}, "must be a URI like s3://bucket/folder or file:///data/set"),
        ({"a": "file://path"}, "must have an absolute path in a: file:///folder"),
        ({"a": "https://me:word@host/x"}, "must be without the password in a, which all users could read"),
        ({"DIR": "s3://b"}, "must be without DIR: the pool has EF_DATA_DIR itself; take another name"),
        (
            {"a": f"s3://{'x' * 1_900}"} | {f"b{n}": f"s3://{'x' * 1_900}" for n in range(9)},
            "must be at most 16,384 bytes",
        ),
    ],
)
def test_data_that_cannot_be_meant_is_refused(data: dict[str, str], said: str) -> None:
    (problem,) = problems(spec(data=data))
    assert said in problem


def test_no_data_has_the_variable_of_a_setting() -> None:
    root = Path(__file__).parents[4]
    sources = (file.read_text() for folder in ("shared", "services") for file in (root / folder).rglob("*.py"))
    settings = {name for text in sources for name in re.findall(r"\bEF_DATA_([A-Z]+)\b", text)}
    assert settings == DATA_NAMES_OF_OURS
