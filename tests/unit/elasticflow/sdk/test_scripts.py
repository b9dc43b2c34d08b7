"""A user script as an elastic job: its changes, and its specification."""

import importlib
import re
from difflib import SequenceMatcher
from pathlib import Path

import pytest
import torch
from torch import nn

import elasticflow
from elasticflow.cli.job_options import SubmissionOptions
from elasticflow.errors import InputUnusable, InvalidJob
from elasticflow.sdk.script import Script, TorchrunScript
from elasticflow.sdk.submission import code_of, load, profilable, submission_of, with_code
from tests.support.error_codes import coded

EXAMPLES = Path(__file__).parents[4] / "examples"
LIBRARY_EXAMPLES = ["trainer", "accelerate_loop", "lightning_module"]


def test_five_lines_make_a_script_elastic():
    """The differing lines: a changed line counts once, as an added or removed line."""
    before, after = ((EXAMPLES / "ddp" / name).read_text().splitlines() for name in ("plain.py", "elastic.py"))
    changed = [
        max(len(removed), len(added))
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, before, after).get_opcodes()
        if tag != "equal"
        for removed, added in [(written(before[i1:i2]), written(after[j1:j2]))]
    ]
    assert 0 < sum(changed) <= 5


def test_a_torchrun_script_that_saves_nothing_is_warned_of(tmp_path: Path):
    (tmp_path / "train.py").write_text("optimizer.step()\n")
    assert (
        TorchrunScript(tmp_path / "train.py").warning().startswith("train.py saves no snapshot: a change of its GPUs")
    )
    (tmp_path / "train.py").write_text("torch.save(state, path)\n")
    assert not TorchrunScript(tmp_path / "train.py").warning()
    assert not TorchrunScript("package.train").warning(), "the nodes have it"


@pytest.mark.parametrize("name", LIBRARY_EXAMPLES)
def test_five_lines_make_a_script_with_a_library_elastic(name: str):
    """Those that name an adapter, or what only a job's loader has."""
    lines = (EXAMPLES / "libraries" / f"{name}.py").read_text().splitlines()[1:]
    changed = [line for line in lines if re.search(r"elastic|loader\.(epochs|report)", line)]
    assert 0 < len(changed) <= 5


@pytest.mark.parametrize("name", LIBRARY_EXAMPLES)
def test_a_script_with_a_library_is_packaged_as_a_script(name: str):
    job, code = load(str(EXAMPLES / "libraries" / f"{name}.py"))
    assert isinstance(job, Script)
    assert code


def written(lines: list[str]) -> list[str]:
    return [line for line in lines if line.strip()]


def test_a_script_is_packaged_and_not_run_by_the_client(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import elasticflow\nraise SystemExit(elasticflow.elastic(None, None, None))\n")
    job, code = load(str(script), ["--epochs", "3 or 4"])
    job.set_hyperparameter(global_batch_size=64).term_condition(max_iterations=10).set_deadline(within=60)
    spec = with_code(job, code).spec
    assert code is not None
    assert (spec.training_function, spec.code_digest) == ("train:__main__", code.code_digest)
    assert dict(spec.hyperparameters) == {"1": "--epochs", "2": "3 or 4"}
    assert spec.arguments == ("--epochs", "3 or 4")
    assert submission_of(job).spec == spec


def test_a_script_is_profiled_without_a_deadline_and_a_number_of_iterations(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import elasticflow\nraise SystemExit(elasticflow.elastic(None, None, None))\n")
    job = load(str(script))[0].set_hyperparameter(global_batch_size=64)
    ready = profilable(job, code_of(job))
    assert ready.code is not None
    assert (ready.spec.code_digest, ready.spec.deadline_in_s) == (ready.code.code_digest, None)
    assert job.max_iterations is None


def test_a_script_on_the_nodes_is_a_module():
    job, code = load("examples.ddp.elastic:__main__")
    job.set_hyperparameter(global_batch_size=64).term_condition(max_iterations=10).set_deadline(within=60)
    assert code is None
    assert job.spec().training_function == "examples.ddp.elastic:__main__"


def test_settings_of_a_script_are_its_arguments(tmp_path):
    with pytest.raises(InvalidJob, match=r"a script gets its settings \(rate\) as arguments, after --"):
        Script("train.py").set_hyperparameter(rate=0.1).spec()
    (tmp_path / "job.py").write_text("from elasticflow import ElasticJob\nclass Job(ElasticJob): ...\n")
    with pytest.raises(
        InputUnusable, match=r"not a script: unexpected arguments --rate 0\.1; use --set", check=coded("not_loadable")
    ):
        load(str(tmp_path / "job.py"), ["--rate", "0.1"])


def test_a_file_without_job_is_rejected_with_both_ways_to_write_one(tmp_path):
    (tmp_path / "plain.py").write_text("print('hello')\n")
    with pytest.raises(
        InputUnusable, match=r"no subclass of ElasticJob.* must call elasticflow.elastic", check=coded("not_loadable")
    ):
        load(str(tmp_path / "plain.py"))


def test_options_are_printed_as_a_command_that_repeats_them():
    options = SubmissionOptions(target="train.py", arguments=("--epochs", "3"), batch=64, where=("--pool", "a"))
    assert options.command() == "eflow submit train.py --batch 64 --pool a -- --epochs 3"


def test_outside_a_job_the_loader_is_unchanged(capsys):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    loader = elasticflow.elastic([1, 2], model, optimizer)
    seen = list[tuple[int, int, int]]()
    for epoch in loader.epochs(2):
        for batch in loader:
            optimizer.step()
            seen.append((epoch, batch, loader.iteration))
        assert list(loader) == [1, 2], "an evaluation is no step"
    assert seen == [(0, 1, 1), (0, 2, 2), (1, 1, 3), (1, 2, 4)]
    assert len(loader) == 2
    assert loader.index(2) == 1, "other attributes are the loader's"  # pyright: ignore[reportAttributeAccessIssue]
    loader.report(accuracy=0.5)
    assert capsys.readouterr().out == "accuracy=0.5\n"


def test_scripts_that_differ_in_the_learning_rate_alone_share_one_measurement():
    def measured(*arguments: str) -> str:
        job = Script("package.train:__main__", *arguments).set_hyperparameter(global_batch_size=8)
        return job.term_condition(max_iterations=9).set_deadline(within="2m").spec(code_digest="a" * 64).measured_key

    assert measured("--lr", "0.1", "--wide") == measured("--lr", "0.01", "--wide")
    assert measured("--wide", "--learning-rate=0.1") == measured("--wide", "--learning-rate=0.01")
    assert measured("--layers", "2", "--lr", "0.1") != measured("--layers", "4", "--lr", "0.1")
    assert measured("--lr", "0.1", "0.2") != measured("--lr", "0.1", "0.3")


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_an_object_without_state_is_refused_outside_of_a_job_too(library: str) -> None:
    adapter = importlib.import_module(f"elasticflow.adapters.{library}")
    with pytest.raises(TypeError, match=r"elastic_trainer\(\): dict needs state_dict\(\) and load_state_dict\(\)"):
        adapter.elastic_trainer(object(), {"momentum": 0.9})
