"""Each option of a job reaches the commands that its row names, the printed command line, and the job file."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
import typer

from elasticflow import ElasticJob
from elasticflow.cli.app import app
from elasticflow.cli.command_options import LedgerOptions, PoolOptions, TenantOptions, where_words
from elasticflow.cli.job_file import options_of
from elasticflow.cli.job_options import ClassName, SubmissionOptions
from elasticflow.cli.option_table import In, Row, filled, rows_of, takes_tables

GROUP: Any = typer.main.get_command(app)
COMMANDS = ("submit", "quote", "profile", "run", "train")
ROWS = {row.name: row for row in rows_of(SubmissionOptions)}
NOT_IN_THE_JOB = {"source", "target", "arguments", "torchrun", "workdir", "secrets", "sweep", "name", "quote"}
TEXTS: dict[str, Any] = {  # other options take any text
    "arguments": ("--lr", "0.1"),
    "deadline": "2h",
    "settings": ("momentum=0.5", "label=a b"),
    "environment": ("A=b c", "B=1"),
    "data": ("train=s3://bucket/train",),
    "sweep": ("lr=[0.1, 0.2]",),
    "secrets": ("TOKEN",),
    "gpus": "2..8",
    "gpus_per_replica": 4,
    "gpu_memory": "8GiB",
    "start_timeout": "10m",
    "stall_timeout": "5m",
    "requirement": Path("requirements.txt"),
    "own_environment": Path("requirements.txt"),
    "python": "3.12",
    "job_class": ClassName.SOFT,
}


class Net(ElasticJob):
    hyperparameters: Mapping[str, Any] = {"global_batch_size": 8, "momentum": 0.9, "label": "x", "batch_per_worker": 1}


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("requirements.txt").write_text("numpy\n")
    for name in ("NATS_URL", "EF_DATA_DIR", "EF_POOL", "EF_TENANT"):
        monkeypatch.delenv(name, raising=False)


def value_of(row: Row) -> Any:
    """A value that is not the default."""
    kind = get_args(row.parameter.annotation)[0]
    kinds = {bool: True, int | None: 7, float | None: 2.5, Path | None: Path("folder")}
    return TEXTS.get(row.name, kinds.get(kind, row.name))


def with_option(name: str) -> SubmissionOptions:
    options = SubmissionOptions(target="train.py")
    return options if name == "target" else replace(options, **{name: value_of(ROWS[name])})


def parsed(*words: str) -> SubmissionOptions:
    """The options that `eflow submit` gets of these words."""
    context = GROUP.commands["submit"].make_context("submit", list(words))
    return filled(SubmissionOptions, context.params)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_is_in_the_commands_that_its_row_names_and_in_no_other(command: str) -> None:
    named = [name for name, row in ROWS.items() if command in row.use.commands]
    parameters = [parameter.name for parameter in GROUP.commands[command].params if parameter.name in ROWS]
    assert sorted(parameters) == sorted(named)
    options = [name for name in named if ROWS[name].word]
    assert [name for name in parameters if name in options] == options, "in the same order everywhere"


@pytest.mark.parametrize("name", ROWS)
def test_the_printed_command_line_and_the_job_file_have_each_option(name: str) -> None:
    options = with_option(name)
    eflow, submit, *words = shlex.split(options.command())
    assert (eflow, submit, parsed(*words)) == ("eflow", "submit", options)
    (key,) = [key for key, option in options_of(GROUP.commands["submit"]).items() if is_row(option.word, key, name)]
    Path("job.toml").write_text(
        f'target = "train.py"\n{"" if name == "target" else toml_of(key, value_of(ROWS[name]))}'
    )
    assert parsed("job.toml") == options


def is_row(word: str, key: str, name: str) -> bool:
    return word == ROWS[name].word if word else key == name


def toml_of(key: str, value: Any) -> str:
    """As a user writes it: values by name as a table."""
    match value:
        case bool() | int() | float():
            return f"{key} = {str(value).lower()}\n"
        case tuple() if key not in ("arguments", "secret"):
            pairs = (text.partition("=") for text in value)
            return f"[{key}]\n" + "".join(f"{n} = {v if v[0] in '[0' else repr(v)}\n" for n, _, v in pairs)
        case tuple():
            return f"{key} = {list(value)}\n"
        case _:
            return f'{key} = "{value}"\n'


@pytest.mark.parametrize("name", [name for name in ROWS if name not in NOT_IN_THE_JOB])
def test_each_option_of_the_specification_changes_the_job(name: str) -> None:
    assert vars(with_option(name).apply(Net())) != vars(Net())


@pytest.mark.parametrize("name", sorted(NOT_IN_THE_JOB))
def test_other_options_leave_the_job_as_it_is(name: str) -> None:
    assert vars(with_option(name).apply(Net())) == vars(Net())


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    target: Annotated[str, typer.Argument(metavar="FILE")]
    fast: Annotated[bool, typer.Option("--fast"), In(("go",))] = False
    ledger: LedgerOptions = field(default_factory=LedgerOptions)


def test_a_command_has_the_options_of_its_table_and_of_those_within_it() -> None:
    taken: list[Any] = []

    @takes_tables
    def go(number: Annotated[int, typer.Option("--number")], options: Table) -> None:
        taken.append((number, options))

    @takes_tables
    def stay(target: Annotated[str, typer.Argument(metavar="NODE")], options: Table) -> None:
        taken.append((target, options))

    going, staying = command_of(go), command_of(stay)
    assert [p.name for p in going.params] == ["target", "number", "fast", "file", "nats_url", "pool", "data_dir"]
    assert [p.name for p in staying.params] == ["target", "file", "nats_url", "pool", "data_dir"]
    assert [p.metavar for p in (going.params[0], staying.params[0])] == ["FILE", "NODE"]
    going.main(["a.py", "--fast", "--number", "3", "--pool", "lab"], standalone_mode=False)
    staying.main(["node-1", "--file", "run.ledger"], standalone_mode=False)
    assert taken == [
        (3, Table(target="a.py", fast=True, ledger=LedgerOptions(where=PoolOptions(pool="lab")))),
        ("node-1", Table(target="node-1", ledger=LedgerOptions(file=Path("run.ledger")))),
    ]


def command_of(function: Callable[..., None]) -> Any:
    made = typer.Typer(add_completion=False)
    made.command()(function)
    return typer.main.get_command(made)


def test_a_suggested_command_names_the_pool_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EF_POOL", "of-the-shell")
    monkeypatch.setenv("EF_TENANT", "lab")
    submit = GROUP.commands["submit"]
    context = submit.make_context("submit", ["train.py", "--data-dir", "state"])
    words = where_words(context, filled(TenantOptions, context.params))
    assert words == ("--data-dir", "state", "--tenant", "lab")
