"""The command line without a pool: its help, its exit codes, and one line for each failure."""

import asyncio
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from elasticflow import ElasticJob
from elasticflow.cli.app import app
from elasticflow.cli.job_file import read_job_file
from elasticflow.cli.job_options import ClassName, SubmissionOptions, class_named
from elasticflow.cli.option_table import rows_of
from elasticflow.cli.option_values import parse_data, parse_setting, read_secret
from elasticflow.cli.up import cpu_slots_in_words, show_pool
from elasticflow.client.operator_decisions import configure, read_config
from elasticflow.client.pool_endpoint import Endpoint, RunFile
from elasticflow.errors import InvalidJob
from elasticflow.sdk.requirements import read_requirements
from elasticflow.sdk.submission import load
from elasticflow.shared.errors import BadSettings, ElasticFlowError
from elasticflow.shared.messages.events import JobAdmitted
from elasticflow.shared.messages.export import ExportWriter
from elasticflow.shared.messages.pool_config import PoolConfig, TenantQuota
from elasticflow.shared.messages.timeouts import FailureTimeouts
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.terminal import console
from elasticflow.simulator.padding.windows_and_loads import read_loads
from elasticflow.simulator.timing.overhead import overhead_model
from testbed.histories import NOW_S, pool
from tests.support.installation import ROOT
from tests.support.worker_events import admitted

COMMANDS = (
    ("up",),
    ("down",),
    ("configure",),
    ("submit",),
    ("quote",),
    ("profile",),
    ("run",),
    ("jobs",),
    ("cancel",),
    ("amend",),
    ("scale-out",),
    ("scale-in",),
    ("checkpoint",),
    ("watch",),
    ("logs",),
    ("nodes",),
    ("events",),
    ("events", "export"),
    ("replay",),
    ("report",),
    ("track",),
    ("explain",),
    ("loads",),
    ("suits",),
    ("map",),
    ("results",),
)
JOB_FILE = """
from elasticflow import ElasticJob

class {name}(ElasticJob):
    hyperparameters = {{"global_batch_size": {batch}}}
    max_iterations = 100
"""


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a pool; user modules that a test loads are forgotten."""
    monkeypatch.chdir(tmp_path)
    for name in ("NATS_URL", "EF_DATA_DIR", "EF_POOL", "EF_TENANT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.path", [*importlib.import_module("sys").path])
    return tmp_path


def eflow(*arguments: str) -> tuple[int, str]:
    """Exit code, and stdout with stderr."""
    result = CliRunner().invoke(app, list(arguments), prog_name="eflow")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_helps_with_examples(command: tuple[str, ...]) -> None:
    status, shown = eflow(*command, "--help")
    assert status == 0
    assert "Examples:" in shown
    assert f"eflow {' '.join(command)}" in shown
    assert "--json" in shown


def test_each_command_is_listed_with_one_unbroken_sentence() -> None:
    status, shown = eflow("--help")
    rows = [line.strip("│ ") for line in shown.splitlines() if line.startswith("│")]
    assert status == 0
    assert {command for command, *_ in COMMANDS} < {row.partition(" ")[0] for row in rows}
    listed = " ".join(" ".join(rows).split())
    assert "executors with CPU slots or GPUs down Stop the pool" in listed


def test_commands_are_listed_in_groups() -> None:
    _, shown = eflow("--help")
    groups = [line.strip("╭─╮ ") for line in shown.splitlines() if line.startswith("╭")]
    assert groups == ["Options", "Jobs", "Pool", "Tasks on idle GPUs", "Ledger and simulations"]


def test_every_command_has_json() -> None:
    group: Any = typer.main.get_command(app)
    every = [
        *group.commands.items(),
        *group.commands["keys"].commands.items(),
        *group.commands["events"].commands.items(),
    ]
    without = {name for name, command in every if "--json" not in {word for p in command.params for word in p.opts}}
    # a page, a node, a group of commands, a command whose options are the simulator's, and one with another's output
    assert without == {"ui", "node", "keys", "simulate", "exec"}


@pytest.mark.parametrize(
    "command",
    [
        ("jobs",),
        ("nodes",),
        ("loads",),
        ("suits", "--task", "1s"),
        ("map", "json:loads"),
        ("results", "l"),
        ("watch",),
        ("explain", "j"),
        ("report",),
        ("events",),
        ("logs", "j"),
        ("cancel", "j"),
        ("amend", "j"),
    ],
)
def test_without_a_pool_every_command_names_eflow_up(command: tuple[str, ...]) -> None:
    status, shown = eflow(*command)
    assert status == 2
    assert shown.startswith("eflow: no running pool found")
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize(
    ("source", "target", "status", "said"),
    [
        (None, "none.py", 2, "there is no file"),
        ("import not_a_module_anywhere", "user_a.py:Net", 2, "No module named 'not_a_module_anywhere'"),
        ("1 / 0", "user_b.py:Net", 2, "ZeroDivisionError"),
        ("class Net: ...", "user_c.py:Net", 2, "Net is not a subclass of ElasticJob"),
        ("x = 1", "user_d.py:Net", 2, "user_d has no class Net"),
        ("x = (", "user_e.py:Net", 2, "SyntaxError"),
        (JOB_FILE.format(name="Net", batch=0), "user_f.py", 2, "global_batch_size"),
        (JOB_FILE.format(name="Net", batch='"big"'), "user_g.py", 2, "global_batch_size"),
        ("", "module_without_class", 2, "name a file and a class"),
    ],
)
def test_a_job_that_cannot_be_loaded_is_explained(
    nowhere: Path, source: str | None, target: str, status: int, said: str
) -> None:
    if source is not None:
        (nowhere / f"{target.partition('.')[0]}.py").write_text(source)
    ended, shown = eflow("submit", target, "--deadline", "10m")
    assert (ended, said in shown) == (status, True), shown
    assert len(shown.splitlines()) == 1


def test_a_class_inside_a_package_is_loaded_by_its_file(nowhere: Path) -> None:
    package = nowhere / "user_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "nets.py").write_text(JOB_FILE.format(name="Net", batch=8))
    job, code = load(str(package / "nets.py"))
    assert code is not None
    assert code.training_function == "user_package.nets:Net"
    assert type(job).__module__ == "user_package.nets"


@pytest.mark.parametrize("option", [("--deadline", "soon"), ("--set", "lr"), ("--class", "gold"), ("--name", "-x")])
def test_a_wrong_option_is_a_usage_error(nowhere: Path, option: tuple[str, str]) -> None:
    (nowhere / "user_h.py").write_text(JOB_FILE.format(name="Net", batch=8))
    status, shown = eflow("submit", "user_h.py", *option)
    assert status == 2
    assert option[0] in shown


@pytest.mark.parametrize(
    "option", [("--nodes", "100000"), ("--replicas", "admission=100000"), ("--replicas", "executor=2")]
)
def test_no_more_processes_are_started_than_a_machine_can_carry(option: tuple[str, str]) -> None:
    status, shown = eflow("up", *option)
    assert status == 2
    assert option[0] in shown


def test_a_closed_pipe_is_left_to_the_application() -> None:
    with pytest.raises(BrokenPipeError):
        console().on_broken_pipe()


def test_a_quote_is_taken_under_its_own_name(nowhere: Path) -> None:
    (nowhere / "user_q.py").write_text(JOB_FILE.format(name="Net", batch=8))
    status, shown = eflow("submit", "user_q.py", "--quote", "net-1", "--name", "other")
    assert status == 2
    assert "--name" in shown
    assert SubmissionOptions(target="user_q.py", quote="net-1").command() == "eflow submit user_q.py --quote net-1"
    project = SubmissionOptions(
        target="a.py", workdir=Path("."), requirement=Path("r.txt"), environment=("A=b c", "B=1"), data=("d=s3://b/c",)
    )
    assert (
        project.command()
        == "eflow submit a.py --workdir . --env 'A=b c' --env B=1 --requirement r.txt --data d=s3://b/c"
    )
    assert SubmissionOptions(target="a.py", gpu_type="P100").command() == "eflow submit a.py --gpu-type P100"


@pytest.mark.parametrize("content", [b"", b"not a ledger", b"EFLEDGER1\n"])
def test_a_foreign_or_cut_file_is_named(nowhere: Path, content: bytes) -> None:
    (nowhere / "run.ledger").write_bytes(content)
    status, shown = eflow("explain", "j1", "--file", "run.ledger")
    assert status == 2
    assert "run.ledger is not an exported ledger" in shown


def test_a_job_that_a_file_does_not_know_is_looked_for_in_that_file(nowhere: Path) -> None:
    with (nowhere / "run.ledger").open("wb") as file:
        ExportWriter(file).finish()
    status, shown = eflow("explain", "j1", "--file", "run.ledger")
    assert status == 1
    assert "unknown job 'j1' in run.ledger; `eflow jobs --all --file run.ledger` lists its jobs" in shown


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "job.toml",
            'target = "a.py"\ndeadline = "10m\n',
            "line 2, column 12: the quote that begins here is not closed",
        ),
        ("pool.toml", 'reserve_nodes = 1\nx = "10m\n', "line 2, column 5: the quote that begins here is not closed"),
        ("pool.json", '{"reserve_nodes" 1}', "line 1, column 18: expecting ':' delimiter"),
        ("pyproject.toml", '[project]\ndependencies = ["a\n]', "line 2, column 17: the quote that begins here is"),
        ("loads.toml", '[[load]]\nname = "x\n', "line 2, column 8: the quote that begins here is not closed"),
        ("overhead.json", '{"seconds_by_num_gpus": {"1": 0.1}', "line 1, column 35: expecting ',' delimiter"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_line_and_column(
    nowhere: Path, name: str, text: str, said: str
) -> None:
    """Of each file in TOML or JSON that a command takes."""
    file = nowhere / name
    file.write_text(text)

    def read() -> object:
        match name:
            case "job.toml":
                return read_job_file(file, file.read_bytes(), {})
            case "pool.toml" | "pool.json":
                return read_config(file)
            case "pyproject.toml":
                return read_requirements(file)
            case "loads.toml":
                return read_loads(file)
            case _:
                return overhead_model(f"measured {file}", 8)

    with pytest.raises((ElasticFlowError, InvalidJob), match=re.escape(said)) as raised:
        read()
    assert name in str(raised.value)


def test_a_pool_config_is_read_from_toml_and_json(nowhere: Path) -> None:
    toml, as_json = nowhere / "pool.toml", nowhere / "pool.json"
    toml.write_text('resize_cost_s = 2\n[curves."cnn/b64"]\n1 = 5.0\n[quotas.lab]\nmax_jobs_per_day = 3\n')
    as_json.write_text(
        '{"resize_cost_s": 2, "curves": {"cnn/b64": {"1": 5.0}}, "quotas": {"lab": {"max_jobs_per_day": 3}}}'
    )
    config = read_config(toml)
    assert config == read_config(as_json)
    assert (config.resize_cost_s, config.curves) == (2.0, {"cnn/b64": {1: 5.0}})
    assert config.quota("lab") == TenantQuota(max_jobs_per_day=3)
    assert config.stop_free
    toml.write_text("stop_free = false")
    assert not read_config(toml).stop_free


def test_every_wrong_setting_of_a_pool_is_named(nowhere: Path) -> None:
    (nowhere / "pool.toml").write_text(
        "resize_cost_s = -1\nmax_restarts = true\ncolour = 1\n[quotas.lab]\njobs_per_day = 1\n"
    )
    with pytest.raises(BadSettings) as wrong:
        read_config(nowhere / "pool.toml")
    for problem in (
        "resize_cost_s: must be greater than or equal to 0, not -1",
        "max_restarts: must be a valid integer, not True",
        "colour is not a setting of a pool",
        "quotas.lab.jobs_per_day is not a setting of a pool; did you mean max_jobs_per_day",
    ):
        assert f"{nowhere / 'pool.toml'}: {problem}" in str(wrong.value)


@pytest.mark.parametrize(
    "table", ["padding_weights", "racks", "quotas", "quotas.lab", "[quotas.lab.budgets]", 'curves."a/b1"']
)
def test_a_setting_below_a_table_is_told_where_it_belongs(nowhere: Path, table: str) -> None:
    file, named = nowhere / "pool.toml", table.strip("[]").replace('"', "")
    file.write_text(f'[{table}]\ncode_kept_s = 604800.0\nbest_effort = "fair"\n')
    with pytest.raises(BadSettings) as wrong:
        read_config(file)
    for key in ("code_kept_s", "best_effort"):
        assert f"{file}: {named}.{key} is a setting of the pool: move it above the first [table]" in str(wrong.value)


def test_a_setting_in_a_map_of_json_is_told_where_it_belongs(nowhere: Path) -> None:
    (nowhere / "pool.json").write_text('{"padding_weights": {"lab": 2.0, "reserve_nodes": 1}}')
    with pytest.raises(BadSettings, match=r"padding_weights\.reserve_nodes is .*: move it to the top level"):
        read_config(nowhere / "pool.json")


def test_the_settings_of_the_guide_make_one_file_in_the_order_that_it_names(nowhere: Path) -> None:
    guide = (ROOT / "docs" / "how-to" / "operate-a-pool.md").read_text()
    with_tables, above = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    (nowhere / "pool.toml").write_text(above + with_tables)
    config = read_config(nowhere / "pool.toml")
    assert (config.code_kept_s, config.padding_weights) == (604_800.0, {"research": 2.0})
    assert "above the first `[table]`" in guide


def test_a_tenant_may_be_called_as_a_setting(nowhere: Path) -> None:
    (nowhere / "pool.toml").write_text("[quotas.curves]\nmax_jobs_per_day = 3\n")
    assert read_config(nowhere / "pool.toml").quota("curves") == TenantQuota(max_jobs_per_day=3)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            "heartbeat_timeout_s = 1e-6",
            "heartbeat_timeout_s: must be at least 2 s, not 1e-06: another replica",
        ),
        ("heartbeat_timeout_s = 1e11", "heartbeat_timeout_s: must be at most 86400 s, not 1e+11: else"),
        ("stall_timeout_s = 0.5", "stall_timeout_s: must be at least 7.5 s, not 0.5: a connection"),
        ("stall_timeout_s = 3\nheartbeat_timeout_s = 2", "stall_timeout_s: must be at least 6 s, not 3"),
        ("heartbeat_timeout_s = 600", "stall_timeout_s: must be at least 700.5 s, not 120: a connection"),
        ("stall_timeout_s = 1e11", "stall_timeout_s: must be at most 2592000 s, not 1e+11: else"),
    ],
)
def test_timeouts_that_cannot_distinguish_a_loss_from_a_pause_are_rejected(
    nowhere: Path, settings: str, problem: str
) -> None:
    file = nowhere / "pool.toml"
    file.write_text(settings)
    with pytest.raises(BadSettings) as wrong:
        read_config(file)
    assert f"{file}: {problem}" in str(wrong.value)
    assert eflow("configure", "pool.toml")[0] == 2, "nothing was sent: there is no pool"


async def test_a_configuration_that_was_not_read_from_a_file_is_checked_before_it_is_sent() -> None:
    with pytest.raises(BadSettings, match="heartbeat_timeout_s: must be at least 2 s, not 1: another replica"):
        await configure("nats://nowhere.invalid:1", "p", PoolConfig(heartbeat_timeout_s=1.0), SystemClock())


def test_the_defaults_and_the_least_times_are_taken(nowhere: Path) -> None:
    (nowhere / "pool.toml").write_text("heartbeat_timeout_s = 2.0\nstall_timeout_s = 6.0")
    assert read_config(nowhere / "pool.toml").timeouts == FailureTimeouts(heartbeat_timeout_s=2.0, stall_timeout_s=6.0)
    assert not PoolConfig().timeouts.problems()


def test_a_config_that_is_no_map_is_refused(nowhere: Path) -> None:
    (nowhere / "pool.json").write_text('[{"resize_cost_s": 2}]')
    with pytest.raises(BadSettings, match="is a map of settings"):
        read_config(nowhere / "pool.json")


def test_down_without_a_pool_reports_it() -> None:
    assert eflow("down") == (0, "no pool runs in .eflow\n")


def test_a_secret_is_read_from_the_environment_or_a_file_and_never_typed(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "t-1")
    monkeypatch.setitem(os.environb, b"LATIN", b"\xe4")
    (nowhere / "key.txt").write_text("k-2\n")
    (nowhere / "zero.txt").write_bytes(b"k\0")
    assert [read_secret("TOKEN"), read_secret("KEY=@key.txt")] == [("TOKEN", "t-1"), ("KEY", "k-2")]
    (nowhere / "user_s.py").write_text(JOB_FILE.format(name="Net", batch=8))
    for option, said in (
        ("ABSENT", "the variable ABSENT is not set here"),
        ("KEY=typed", "a value typed here could be read by others"),
        ("KEY=@absent.txt", "absent.txt cannot be read"),
        ("KEY=@zero.txt", "KEY: its value must be a text in UTF-8 without zero bytes"),
        ("LATIN", "LATIN: its value must be a text in UTF-8 without zero bytes"),
    ):
        status, shown = eflow("submit", "user_s.py", "--deadline", "1h", "--secret", option)
        assert status == 2
        assert said in " ".join(shown.split()).replace(" │ │ ", " ")
        assert "typed here" in said or "typed" not in shown


def test_data_is_a_uri_or_a_path_and_each_name_is_given_once(nowhere: Path) -> None:
    texts = ["a=s3://bucket/a", "b=sets/b c", "c=/mnt/c", "d=file:///mnt/d"]
    assert parse_data(texts) == {
        "a": "s3://bucket/a",
        "b": f"{nowhere.as_uri()}/sets/b%20c",
        "c": "file:///mnt/c",
        "d": "file:///mnt/d",
    }
    (nowhere / "user_uris.py").write_text(JOB_FILE.format(name="Net", batch=8))
    for options, said in (
        (["sets"], "'sets' is not NAME=URI"),
        (["a-b=s3://b"], "'a-b=s3://b' is not NAME=URI, with a NAME of letters, digits and _"),
        (["1x=/a"], "'1x=/a' is not NAME=URI, with a NAME of letters, digits and _ that begins with no digit"),
        (["a=x", "a=y"], "a is named twice; give each data a name of its own"),
        (["DIR=x"], "data: must be without DIR: the pool has EF_DATA_DIR itself; take another name"),
        (["a=https://me:word@host/x"], "must be without the password in a"),
        (["a=file://x"], "must have an absolute path in a: file:///folder"),
    ):
        words = [word for option in options for word in ("--data", option)]
        status, shown = eflow("submit", "user_uris.py", "--deadline", "1h", *words)
        assert status != 0
        assert said in " ".join(shown.replace("│", "").split())


def test_data_on_the_command_line_replaces_that_of_the_same_name_in_a_file(nowhere: Path) -> None:
    (nowhere / "user_set.py").write_text(JOB_FILE.format(name="Net", batch=8))
    (nowhere / "job.toml").write_text('target = "user_set.py"\ndeadline = "1h"\n[data]\ntrain = "a"\nDIR = "b"\n')
    _, shown = eflow("submit", "job.toml", "--data", "train=s3://bucket/other")
    assert "must be without DIR" in " ".join(shown.replace("│", "").split()), "train is named once"


def test_a_hyperparameter_that_the_class_does_not_declare_is_named_with_the_nearest_one(nowhere: Path) -> None:
    (nowhere / "user_typo.py").write_text(JOB_FILE.format(name="Net", batch=8))
    (nowhere / "job.toml").write_text('target = "user_typo.py"\n[set]\nglobal_batch = 16\n')
    refused = "global_batch: Net declares no such hyperparameter; did you mean global_batch_size?"
    options = ("user_typo.py", "--set", "global_batch=16")
    for command in ("submit", *options), ("quote", *options), ("profile", *options):
        assert eflow(*command) == (2, f"eflow: --set {refused}\n")
    assert eflow("quote", "job.toml") == (2, f"eflow: job.toml: line 3: [set] {refused}\n")


def test_a_quote_takes_a_submitted_line_and_reads_no_secret(nowhere: Path) -> None:
    (nowhere / "user_quote.py").write_text(JOB_FILE.format(name="Net", batch=8))
    line = ("user_quote.py", "--secret", "ABSENT", "--secret", "KEY=@absent.txt", "--mixed", "--deadline", "1h")
    status, shown = eflow("quote", *line)
    assert (status, "no .eflow/run.json" in shown) == (2, True), "only the pool is missing"


@pytest.mark.parametrize("command", ["quote", "profile"])
def test_all_options_on_which_a_speed_depends_are_those_of_a_submission(nowhere: Path, command: str) -> None:
    group: Any = typer.main.get_command(app)
    lacking = {"job_class", "priority", "name", "sweep", "source", "quote"} | (
        {"deadline", "iterations"} if command == "profile" else set()
    )
    named = {row.name for row in rows_of(SubmissionOptions)}
    assert named - {parameter.name for parameter in group.commands[command].params} == lacking


def test_a_model_is_not_fetched_into_a_file(nowhere: Path) -> None:
    (nowhere / "j1").write_text("mine")
    status, shown = eflow("fetch", "j1")
    assert status == 2
    assert "j1 is a file; name another folder" in shown


@pytest.mark.parametrize(
    "interrupted",
    [
        "raise RuntimeError('Error calling __set_name__') from KeyboardInterrupt()",  # as of Python 3.11
        "exec('raise KeyboardInterrupt')",  # as in a dataclass; Python then ends itself by the signal
        "raise SystemExit(130)",
    ],
)
def test_ctrl_c_at_any_moment_is_no_traceback_but_exit_code_130(interrupted: str) -> None:
    program = (
        "import atexit\n"
        "import elasticflow.cli.app\n"
        "from elasticflow.cli import main\n"
        "atexit.register(print, 'exit handler')\n"
        f"def app(prog_name): {interrupted}\n"
        "elasticflow.cli.app.app = app\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "exit handler\n", "")


@pytest.mark.parametrize(("folder", "where"), [(".eflow", ""), ("other", " --data-dir {}")])
def test_a_pool_in_another_folder_is_stopped_by_its_folder(
    nowhere: Path, folder: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir = str(nowhere / folder)
    run = RunFile(pid=1, nats_url="nats://t@127.0.0.1:4222", pool="default", data_dir=data_dir, started_at_s=0.0)
    show_pool(run, as_json=False, detached=True)
    assert capsys.readouterr().out.splitlines()[-1] == f"stop  eflow down{where.format(data_dir)}"


@pytest.mark.parametrize(
    ("slots", "cores", "said"),
    [
        ((8, 0.2), 2, ["slots 8 CPU slots, each 0.2 of a core: a job on one has that part of its speed", "slots 1"]),
        ((8, 0.8), 8, ["slots 8 CPU slots, each 0.8 of a core: a job on one has that part of its speed", "slots 6"]),
        ((1, 1.0), 2, ["slots 1 CPU slots, each of a whole core (this machine has 2)"]),
    ],
)
def test_a_pool_says_what_its_cpu_slots_are(slots: tuple[int, float], cores: int, said: list[str]) -> None:
    lines = cpu_slots_in_words(*slots, cores)
    assert all(line.endswith(end) for line, end in zip(lines, said, strict=True)), lines
    assert all(len(line) <= 80 for line in lines)


def test_who_stops_waiting_is_told_that_the_job_goes_on(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool:
        on_sent: Any = None

        def now_s(self) -> float:
            return NOW_S

        async def submit(self, *_: Any, **__: Any) -> JobAdmitted:
            self.on_sent("net-1")
            return admitted("net-1", minimum_satisfactory_share=(NOW_S, NOW_S + 30.0, 1))

        async def wait(self, *_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("elasticflow.cli.submit.run", lambda call, _: asyncio.run(call(Pool())))
    (nowhere / "user_wait.py").write_text(JOB_FILE.format(name="Net", batch=8))
    status, shown = eflow("submit", "user_wait.py", "--deadline", "1h", "--wait")
    assert status == 130
    assert shown.splitlines()[-1] == (
        "eflow: net-1 was admitted and goes on; `eflow explain net-1` shows it, `eflow cancel net-1` stops it"
    )


@pytest.mark.parametrize("command", ["submit", "profile"])
@pytest.mark.parametrize("is_sent", [True, False])
def test_who_stops_a_command_learns_what_the_pool_has_got(
    command: str, is_sent: bool, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pool:
        on_sent: Any = None

        async def send(self, *_: Any, **__: Any) -> None:
            if is_sent:
                self.on_sent("net-1")
            raise KeyboardInterrupt

        submit = profile = send

    monkeypatch.setattr(f"elasticflow.cli.{command}.run", lambda call, _: asyncio.run(call(Pool())))
    (nowhere / "user_stop.py").write_text(JOB_FILE.format(name="Net", batch=8))
    options = ("--deadline", "1h") if command == "submit" else ()
    sent = (
        "net-1 was sent and goes on, undecided so far; `eflow explain net-1` shows it, `eflow cancel net-1` stops it"
        if command == "submit"
        else "the measurement net-1 goes on; `eflow cancel net-1` stops it"
    )
    nothing = f"nothing was {'submitted' if command == 'submit' else 'measured'}"
    status, shown = eflow(command, "user_stop.py", *options)
    assert (status, shown) == (
        130,
        f"eflow: {sent}\n" if is_sent else f"eflow: {nothing}\n",
    )


def test_who_stops_a_submission_while_its_class_is_imported_has_submitted_nothing(nowhere: Path) -> None:
    (nowhere / "user_slow.py").write_text(JOB_FILE.format(name="Net", batch=8) + "raise KeyboardInterrupt")
    for options in ((), ("--sweep", "a=1,2"), ("--detach",)):
        assert eflow("submit", "user_slow.py", "--deadline", "1h", *options) == (130, "eflow: nothing was submitted\n")


def test_keys_of_secrets_are_made_once(nowhere: Path) -> None:
    assert eflow("keys", "init", "--keys", "k")[0] == 0
    status, shown = eflow("keys", "secrets", "--keys", "k")
    assert status == 0
    assert f"export EF_SECRETS_KEY={nowhere}/k/secrets.key" in shown
    key = shown.partition('secrets_key = "')[2].partition('"')[0]
    assert len(key) == 44
    assert key in eflow("keys", "secrets", "--keys", "k", "--json")[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("submit", "x.py", "--deadline", "0001-01-01"), "0001-01-01 00:00:00 is before 1970"),
        (("submit", "x.py", "--deadline", "0000-01-01"), "'0000-01-01' is not a time"),
        (("submit", "x.py", "--deadline", "9999-12-31T23:59-14:00"), "or thousands of years away"),
        (("submit", "x.py", "--deadline", f"{10**400}d"), "is a duration of thousands of years"),
        (("amend", "j", "--deadline", "0001-01-01"), "is before 1970"),
        (("report", "--since", "0001-01-01"), "is before 1970"),
        (("submit", "x.py", "--timeout", "99999999999999d"), "is a duration of thousands of years"),
    ],
)
def test_a_time_that_no_message_can_hold_is_refused(nowhere: Path, arguments: tuple[str, ...], said: str) -> None:
    status, shown = eflow(*arguments)
    assert (status, said in shown, len(shown.splitlines())) == (2, True, 1), shown


def test_a_nested_setting_is_text_however_deep_it_is() -> None:
    assert parse_setting(f"a={'[' * 100_000}")[1] == "[" * 100_000


@pytest.mark.parametrize("name", ["best-effort", "best_effort", "BEST_EFFORT", "best effort"])
def test_each_printed_name_of_a_class_is_accepted(name: str) -> None:
    assert class_named(name) is ClassName.BEST_EFFORT
    assert ElasticJob().set_job_class("best-effort").job_class  # pyright: ignore[reportArgumentType]


def test_a_deadline_that_is_over_is_told_as_a_date_and_a_duration_before_anything_is_imported(nowhere: Path) -> None:
    (nowhere / "user_never.py").write_text("raise RuntimeError('imported')")
    for command in ("submit", "quote"):
        status, shown = eflow(command, "user_never.py", "--deadline", "2001-01-01T00:00")
        said = " ".join(shown.replace("│", "").split())
        assert status == 2
        assert "2001-01-01 00:00:00 is" in said
        assert "years in the past; choose a later time" in said
    assert "it must be longer than 0 s" in eflow("submit", "user_never.py", "--deadline", "0s")[1]


@pytest.mark.parametrize(
    "options", [("--deadline", "soon"), ("--gpus", "many"), ("--set", "a"), ("--sweep", "a"), ("--gpu-memory", "big")]
)
def test_a_text_without_a_meaning_is_named_before_anything_is_imported(nowhere: Path, options: tuple[str, str]) -> None:
    (nowhere / "user_never.py").write_text("raise RuntimeError('imported')")
    status, shown = eflow("submit", "user_never.py", *options)
    assert (status, "imported" in shown) == (2, False)


def test_the_file_of_a_secret_is_not_sent_with_the_workdir(nowhere: Path) -> None:
    """It would be stored in clear."""
    (nowhere / "user_secret.py").write_text(JOB_FILE.format(name="Net", batch=8))
    (nowhere / "keys").mkdir()
    (nowhere / "keys" / "password.txt").write_text("word")
    words = ("user_secret.py", "--workdir", ".", "--secret", "DB_PASSWORD=@keys/password.txt")
    for command in ("submit", "quote", "profile"):
        status, shown = eflow(command, *words)
        assert status == 2
        said = " ".join(shown.replace("│", "").split())
        assert "DB_PASSWORD: keys/password.txt is in the workdir and would be sent in clear" in said
        assert "write the line /keys/password.txt into" in said
    (nowhere / ".eflowignore").write_text("/keys/password.txt\n")
    _, shown = eflow("submit", *words, "--deadline", "1h")
    assert "no running pool" in shown


def test_an_option_has_the_help_of_the_command_that_means_something_else_by_it() -> None:
    _, of_run = eflow("run", "--help")
    _, of_submit = eflow("submit", "--help")
    assert "data on this machine" in of_run
    assert "each node fetches" not in of_run
    assert "each node fetches" in of_submit


def test_down_names_the_jobs_that_did_not_end(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = pool(4).then(admitted("a")).state.live_jobs.values()
    monkeypatch.setattr("elasticflow.cli.pool.holder_of", lambda folder: 1)
    monkeypatch.setattr("elasticflow.cli.pool._unfinished", lambda folder: list(live))
    monkeypatch.setattr("elasticflow.cli.pool._stop", lambda folder, pid: None)
    _, shown = eflow("down", "--data-dir", str(nowhere))
    said = " ".join(shown.split())
    assert "1 job of it did not end (a): `eflow up` goes on with them; the first promise is due" in said


def test_down_asks_the_pool_of_its_folder_whatever_the_environment_names(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Endpoint]()
    run = RunFile(pid=1, nats_url="nats://here:1", pool="north", data_dir=str(nowhere), started_at_s=NOW_S)
    monkeypatch.setenv("NATS_URL", "nats://elsewhere:1")
    monkeypatch.setenv("EF_POOL", "south")
    monkeypatch.setattr("elasticflow.cli.pool.read_run_file", lambda folder: run)
    monkeypatch.setattr("elasticflow.cli.pool.holder_of", lambda folder: 1)
    monkeypatch.setattr("elasticflow.cli.pool._stop", lambda folder, pid: None)

    def connect(endpoint: Endpoint) -> None:
        asked.append(endpoint)
        raise OSError

    monkeypatch.setattr("elasticflow.cli.pool.Client.connect", connect)
    eflow("down", "--data-dir", str(nowhere))
    assert [(endpoint.nats_url, endpoint.pool) for endpoint in asked] == [("nats://here:1", "north")]


def test_a_class_that_a_file_lacks_is_compared_with_those_it_has(nowhere: Path) -> None:
    (nowhere / "houses.py").write_text("from elasticflow import ElasticJob\n\n\nclass Houses(ElasticJob): ...\n")
    status, shown = eflow("submit", "houses.py:House", "--deadline", "1h")
    assert status == 2
    assert "houses has no class House; did you mean Houses?" in " ".join(shown.split())
    _, shown = eflow("submit", "houses.py:Train", "--deadline", "1h")
    assert "houses has no class Train; it has Houses" in " ".join(shown.split())


@pytest.mark.parametrize("options", [("--epochs", "10"), ("--lr=0.1",)])
def test_an_argument_of_a_script_without_dashes_before_is_told_where_it_goes(
    nowhere: Path, options: tuple[str, ...]
) -> None:
    (nowhere / "train.py").write_text("")
    status, shown = eflow("submit", "train.py", "--batch", "8", "--deadline", "1h", *options)
    assert status == 2
    said = " ".join(shown.replace("│", "").split())
    name = options[0].partition("=")[0]
    assert f"No such option: {name}; an argument of the script comes after --: train.py -- {name} ..." in said


def test_an_option_without_its_value_is_told_that_it_requires_one(nowhere: Path) -> None:
    (nowhere / "train.py").write_text("")
    status, shown = eflow("submit", "train.py", "--deadline")
    assert status == 2
    said = " ".join(shown.replace("│", "").split())
    assert "Option '--deadline' requires an argument." in said
    assert "No such option" not in said


def test_data_that_is_not_on_this_machine_is_a_warning(nowhere: Path) -> None:
    (nowhere / "train.py").write_text(JOB_FILE.format(name="Net", batch=8))
    (nowhere / "here").touch()
    data = ("--data", "train=gone/train", "--data", "labels=here", "--data", "far=s3://bucket/far")
    _, shown = eflow("submit", "train.py", "--deadline", "5m", *data)
    path = f"{nowhere}/gone/train"
    assert f"warning: data: train is not at {path} on this machine; the job needs it there on each node\n" in shown
