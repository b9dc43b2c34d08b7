"""Job files: each option of `eflow submit` as a key, and each wrong key named with its line."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from elasticflow.cli.app import app
from elasticflow.cli.job_file import JobFile, Option, options_of, read_job_file
from elasticflow.cli.option_values import parse_setting, parse_sweep, setting_word, sweep_word
from elasticflow.errors import InputUnusable
from elasticflow.shared.runtime.process.terminal import console
from tests.support.error_codes import coded

GROUP: Any = typer.main.get_command(app)
SUBMIT, QUOTE = GROUP.commands["submit"], GROUP.commands["quote"]
JOB_FILE = """
from elasticflow import ElasticJob

class Net(ElasticJob):
    hyperparameters = {"global_batch_size": 8}
    max_iterations = 100
"""
EVERY_OPTION = """
target = "nets/train.py:Net"
deadline = 2026-05-01T18:00:00
batch = 256
batch_per_worker = 32
iterations = 3000
gpus = "2..8"
gpus_per_replica = 2
gpu_type = "A100,V100"
gpu_memory = "40GiB"
mixed = true
shard_optimizer = true
start_timeout = "10m"
stall_timeout = "5m"
torchrun = false
class = "slo"
priority = 2.5
name = "nightly"
from = "han@40"
quote = ""
tenant = "lab"
again = true
wait = true
timeout = "2h"
detach = false
nats_url = "nats://pool:4222"
pool = "default"
pools = "a,b"
data_dir = "state"
json = false
arguments = ["--epochs", 3]
workdir = "."
requirement = "requirements.txt"
environment = "uv.lock"
python = "3.12"
secret = ["TOKEN", "KEY=@key.txt"]

[env]
WANDB_MODE = "offline"
DEPTH = 3

[data]
train = "s3://bucket/train"
test = "test.csv"

[set]
learning_rate = 0.1
label = "0.1"
nesterov = true

[sweep]
momentum = [0.9, 0.99]
"""


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("NATS_URL", "EF_DATA_DIR", "EF_POOL", "EF_TENANT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def read(text: str, file: str = "job.toml") -> JobFile:
    return read_job_file(Path(file), text.encode(), options_of(SUBMIT))


def problems(text: str) -> str:
    with pytest.raises(InputUnusable, check=coded("bad_job_file")) as wrong:
        read(text)
    return str(wrong.value).removeprefix("job.toml: ")


def eflow(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments), prog_name="eflow")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_every_option_of_the_command_line_is_a_key() -> None:
    keys = set(options_of(SUBMIT))
    typed = {p.name for p in SUBMIT.params if p.name != "help"} - {"target", "arguments"}
    assert len(keys) == len(typed) + 2
    named = {line.partition(" =")[0].strip("[]") for line in EVERY_OPTION.splitlines() if line}
    assert keys <= named, "this test lists each of them"
    assert read(EVERY_OPTION).words == (
        "--deadline=2026-05-01T18:00:00",
        "--batch=256",
        "--batch-per-worker=32",
        "--iterations=3000",
        "--gpus=2..8",
        "--gpus-per-replica=2",
        "--gpu-type=A100,V100",
        "--gpu-memory=40GiB",
        "--mixed",
        "--shard-optimizer",
        "--start-timeout=10m",
        "--stall-timeout=5m",
        "--class=slo",
        "--priority=2.5",
        "--name=nightly",
        "--from=han@40",
        "--quote=",
        "--tenant=lab",
        "--again",
        "--wait",
        "--timeout=2h",
        "--nats-url=nats://pool:4222",
        "--pool=default",
        "--pools=a,b",
        "--data-dir=state",
        "--workdir=.",
        "--requirement=requirements.txt",
        "--environment=uv.lock",
        "--python=3.12",
        "--secret=TOKEN",
        "--secret=KEY=@key.txt",
        "--env=WANDB_MODE=offline",
        "--env=DEPTH=3",
        "--data=train=s3://bucket/train",
        "--data=test=test.csv",
        "--set=learning_rate=0.1",
        '--set=label="0.1"',
        "--set=nesterov=true",
        "--sweep=momentum=[0.9, 0.99]",
    )
    assert read(EVERY_OPTION).arguments == ("--epochs", "3")


def test_the_example_is_a_job_file() -> None:
    file = Path(__file__).parents[4] / "examples/job.toml"
    made = read_job_file(file, file.read_bytes(), options_of(SUBMIT))
    assert Path(made.target) == file.parent / "digits.py"
    assert "--set=learning_rate=0.1" in made.words


def test_paths_are_relative_to_the_file() -> None:
    made = read('target = "nets/train.py:Net"\ndata_dir = "state"', "jobs/job.toml")
    assert (made.target, made.words) == ("jobs/nets/train.py:Net", ("--data-dir=jobs/state",))
    assert read('target = "/home/me/train.py"', "jobs/job.toml").target == "/home/me/train.py"
    assert read('target = "package.module:Net"', "jobs/job.toml").target == "package.module:Net"


def test_the_project_of_a_job_is_beside_its_file() -> None:
    text = 'target = "train.py"\nworkdir = "."\nrequirement = "pyproject.toml"\nsecret = ["TOKEN", "KEY=@key.txt"]\n'
    text += '[data]\ntrain = "a"\nu = "s3://b/c"\n'
    assert read(text, "jobs/job.toml").words == (
        "--workdir=jobs",
        "--requirement=jobs/pyproject.toml",
        "--secret=TOKEN",
        "--secret=KEY=@jobs/key.txt",
        "--data=train=jobs/a",
        "--data=u=s3://b/c",
    )


def test_options_of_later_commands_need_no_code_here() -> None:
    options = {
        "target": Option(key="target", word="", kind=str),
        "label": Option(key="label", word="--label", kind=list, metavar="NAME=TEXT"),
        "include": Option(key="include", word="--include", kind=list, is_path=True),
    }
    text = b'target = "a.py"\ninclude = ["x", "/y"]\n[label]\nzone = "0.1"\nfast = true\nsize = 3\n'
    made = read_job_file(Path("jobs/job.toml"), text, options)
    assert made.words == ("--include=jobs/x", "--include=/y", "--label=zone=0.1", "--label=fast=true", "--label=size=3")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("iteration = 3", "line 1: iteration: unknown key; did you mean iterations?"),
        ("\n\ngpu-type = 'A100'", "line 3: gpu-type: unknown key; did you mean gpu_type?"),
        ("\n[sets]\nlr = 1", "line 2: sets: unknown key; did you mean set or secret?"),
        ("iterations = true", "line 1: iterations: must be a whole number (Total number of iterations), not true"),
        ("iterations = '3'", "line 1: iterations: must be a whole number (Total number of iterations), not '3'"),
        ("mixed = 1", "line 1: mixed: must be true or false, not 1"),
        ("deadline = 600", "line 1: deadline: must be a text: WHEN (90s, 15m, 2h30m, 1d from now, or a time"),
        ("arguments = '--lr 0.1'", "line 1: arguments: must be an array of texts (Arguments of a script), not"),
        ("gpus = {least = 2}", "line 1: gpus: must be a text: N|MIN..MAX (For a job that runs on no other"),
        ("set = 'lr=0.1'", "line 1: set: must be a table [set] of NAME=VALUE, not 'lr=0.1'"),
        ("[set]\nx = 1\nlr = [0.1]", "line 3: [set] lr: must be a number, a text or a boolean, not [0.1]"),
        ("[sweep]\nlr = 0.1", "line 2: [sweep] lr: must be an array of numbers, texts or booleans, not 0.1"),
        ("[set]\n'a b' = 1", "line 1: [set] a b: must be a name of letters, digits and _"),
        ("name = \n", "line 1, column 8: invalid value in `name =`: a text needs quotes"),
    ],
)
def test_a_wrong_key_is_named_with_its_line_and_what_is_allowed(text: str, problem: str) -> None:
    assert problems(text).startswith(problem)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff\xfe", "not a text in UTF-8"),
        (b"batch = " + b"9" * 5_000, "Exceeds the limit"),
        (b"x = " + b"[" * 5_000, "recursion"),
    ],
)
def test_a_hostile_file_is_one_error(nowhere: Path, data: bytes, said: str) -> None:
    (nowhere / "job.toml").write_bytes(data)
    status, shown = eflow("submit", "job.toml")
    assert status == 2
    assert shown.startswith("eflow: job.toml: ")
    assert said in shown


def test_one_error_names_all_wrong_keys() -> None:
    found = problems("batch = 'a'\nbatches = 2\n[set]\nx = []")
    assert re.findall(r"(?:^|; )(line \d: .*?): ", found) == ["line 1: batch", "line 2: batches", "line 4: [set] x"]
    assert problems("batch = 2") == 'target: it is missing; name what is trained, like target = "train.py"'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('deadline = "soon"', "job.toml: line 3: deadline: 'soon' is not a time; write a duration"),
        (
            'class = "gold"',
            "job.toml: line 3: class: 'gold' is no class; choose one of slo, soft, best-effort, padding",
        ),
        ('gpus = "many"', "job.toml: line 3: gpus: 'many' is not like 4, 2..8"),
        ('name = "-x"', "job.toml: line 3: name: other commands would read '-x' as an option"),
        ('timeout = "long"', "job.toml: line 3: timeout: 'long' is not a duration"),
        ("iterations = -5", "job.toml: line 3: iterations: must be greater than 0, not -5"),
        ('name = "a b"', "job.toml: line 3: name: must be 1 to 64 letters"),
        ('env = {EF_X = "a"}', "job.toml: line 3: env: must be without EF_X"),
        (
            '[env]\ndeadline = "10m"',
            "job.toml: line 4: [env] deadline: is an option of the job: move it above the first",
        ),
        ("[set]\nrate = 1", "job.toml: line 4: [set] rate: Net declares no such hyperparameter"),
    ],
)
def test_a_value_that_the_option_refuses_is_named_with_its_line(nowhere: Path, line: str, said: str) -> None:
    (nowhere / "train.py").write_text(JOB_FILE)
    (nowhere / "job.toml").write_text(f'target = "train.py"\n\n{line}\n')
    status, shown = eflow("submit", "job.toml")
    assert status == 2
    assert said in shown


def test_a_wrong_value_of_the_command_line_is_not_blamed_on_the_file(nowhere: Path) -> None:
    (nowhere / "train.py").write_text(JOB_FILE)
    (nowhere / "job.toml").write_text('target = "train.py"\ndeadline = "10m"\n')
    status, shown = eflow("submit", "job.toml", "--deadline", "soon")
    assert status == 2
    assert "line 2" not in shown
    assert "--deadline" in shown


def test_a_wrong_value_has_the_name_of_the_option_that_gave_it(nowhere: Path) -> None:
    (nowhere / "train.py").write_text(JOB_FILE)
    status, shown = eflow("submit", "train.py", "--deadline=5m", "--iterations=-4", "--set=rate=1", "--batch=0")
    assert status == 2
    assert "--set rate: Net declares no such hyperparameter" in shown
    status, shown = eflow("quote", "train.py", "--iterations=-4", "--batch=0", "--gpus=0")
    assert shown.count("--gpus: must be greater than 0, not 0") == 1, "the least and the most are one option"
    assert "--iterations: must be greater than 0, not -4" in shown
    assert "--batch: must be greater than 0, not 0" in shown
    status, shown = eflow("run", "train.py", "--iterations=0", "--env=EF_X=1")
    assert "--iterations: must be greater than 0, not 0" in shown
    assert "--env: must be without EF_X" in shown


def test_a_wrong_name_of_the_file_has_its_line_also_beside_typed_ones(nowhere: Path) -> None:
    (nowhere / "train.py").write_text(JOB_FILE)
    (nowhere / "job.toml").write_text('target = "train.py"\n[set]\nrate = 2\n')
    status, shown = eflow("submit", "job.toml", "--deadline=5m", "--set=global_batch_size=16", "--set=other=1")
    assert status == 2
    assert "job.toml: line 3: [set] rate: Net declares no such hyperparameter" in shown
    assert "--set other: Net declares no such hyperparameter" in shown


def test_a_name_of_a_specification_is_told_as_its_key() -> None:
    assert problems("max_iterations = 3") == "line 1: max_iterations: unknown key; did you mean iterations?"
    assert "the options that `eflow submit --help` lists are its keys" in problems("epochs = 3")


def test_a_file_that_is_not_there_is_named() -> None:
    status, shown = eflow("submit", "none.toml")
    assert (status, shown) == (2, "eflow: none.toml: No such file or directory\n")


def test_other_commands_take_the_file_and_pass_over_options_that_they_lack(nowhere: Path) -> None:
    (nowhere / "train.py").write_text(JOB_FILE)
    (nowhere / "job.toml").write_text('target = "train.py"\nbatch = 16\nwait = true\nbach = 3\n')
    assert "wait" not in options_of(QUOTE)
    status, shown = eflow("quote", "job.toml")
    assert (status, shown) == (2, "eflow: job.toml: line 4: bach: unknown key; did you mean batch or detach?\n")


@pytest.mark.parametrize("value", [0.1, 3, True, "text", "0.1", "true", '"quoted"', "", "a,b", "[1]", float("inf")])
def test_a_value_of_a_file_survives_the_command_line(value: Any) -> None:
    name, read_again = parse_setting(setting_word("x", value))
    assert (name, type(read_again), read_again) == ("x", type(value), value)
    assert parse_sweep([sweep_word("x", [value, "other"])]) == {"x": (value, "other")}


def test_no_colour_is_shown_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert console().color_system is not None
    monkeypatch.setenv("NO_COLOR", "1")
    assert console().no_color
