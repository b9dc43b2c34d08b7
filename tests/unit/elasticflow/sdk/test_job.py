"""The class that users subclass, and the specification that it produces."""

import math
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticflow import ElasticJob, Scalar
from elasticflow.cli.job_options import SubmissionOptions
from elasticflow.errors import InvalidJob
from elasticflow.sdk.job import Condition
from elasticflow.sdk.script import Script, TorchrunScript
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.job_spec import JobClass, MetricCondition
from elasticflow.shared.messages.limits import MAX_TIME_S


class Small(ElasticJob):
    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 64, "learning_rate": 0.1, "layers": 2}
    max_iterations = 100
    metric_conditions: Mapping[str, Condition] = {"accuracy": (">=", 1)}


class OnP100(Small):
    gpu_type = "P100"


def test_declarations_and_setters_become_one_message():
    job = Small().set_hyperparameter(learning_rate=0.2, layers=3).set_deadline(within=timedelta(minutes=2))
    spec = job.term_condition(max_iterations=200).spec()
    assert spec.training_function == f"{__name__}:Small"
    assert spec.global_batch_size == 64
    assert spec.hyperparameters == {"learning_rate": 0.2, "layers": 3}
    assert spec.max_iterations == 200
    assert spec.metric_conditions == (MetricCondition(metric="accuracy", comparison=">=", value=1.0),)
    assert (spec.deadline_s, spec.deadline_in_s) == (None, 120.0)
    assert spec.job_class is JobClass.SLO


def test_jobs_that_differ_in_the_learning_rate_alone_share_one_measurement():
    slow, fast, wide = (
        Small().set_hyperparameter(**changes).set_deadline(within="2m").spec().measured_key
        for changes in ({"learning_rate": 0.01}, {"learning_rate": 0.5}, {"layers": 64})
    )
    assert slow == fast != wide


class Sharded(Small):
    shard_optimizer = True


def test_a_job_may_divide_the_state_of_its_optimizer():
    assert [job.set_deadline(within="2m").spec().shard_optimizer for job in (Small(), Sharded())] == [False, True]
    chosen = SubmissionOptions(target="a.py", shard_optimizer=True)
    assert chosen.apply(Small()).set_deadline(within="2m").spec().shard_optimizer
    assert chosen.command() == "eflow submit a.py --shard-optimizer"


class Patient(Small):
    start_timeout_s = 600
    stall_timeout_s = 90.5


def test_a_job_declares_how_long_a_start_and_a_step_may_take():
    declared = [job.set_deadline(within="2m").spec() for job in (Small(), Patient())]
    assert [(spec.start_timeout_s, spec.stall_timeout_s) for spec in declared] == [(0.0, 0.0), (600.0, 90.5)]
    chosen = SubmissionOptions(target="a.py", start_timeout="10m", stall_timeout="90s")
    spec = chosen.apply(Small()).set_deadline(within="2m").spec()
    assert (spec.start_timeout_s, spec.stall_timeout_s) == (600.0, 90.0)
    assert chosen.command() == "eflow submit a.py --start-timeout 10m --stall-timeout 90s"
    script = Script("train:__main__").set_hyperparameter(global_batch_size=8).term_condition(max_iterations=9)
    assert script.set_deadline(within="2m").set_timeouts(start="10m").spec().start_timeout_s == 600.0
    assert Patient().set_deadline(within="2m").set_timeouts(start=0).spec().start_timeout_s == 0.0
    for wrong in (-1, float("nan"), "soon"):
        with pytest.raises(InvalidJob, match="timeout"):
            Small().set_deadline(within="2m").set_timeouts(stall=wrong).spec()


def test_a_job_has_a_priority_beside_others_of_its_tenant():
    assert Small().set_deadline(within="2m").spec().priority == 1.0
    chosen = SubmissionOptions(target="a.py", priority=2.0)
    assert chosen.apply(Small()).set_deadline(within="2m").spec().priority == 2.0
    assert chosen.command() == "eflow submit a.py --priority 2.0"
    for wrong in (0, -1, float("nan"), 1e7):
        with pytest.raises(InvalidJob, match="priority: must be"):
            Small().set_deadline(within="2m").set_priority(wrong).spec()


class Mixed(Small):
    mixed_gpu_types = True


def test_a_job_may_allow_gpus_of_other_types():
    assert [job.set_deadline(within="2m").spec().mixed_gpu_types for job in (Small(), Mixed())] == [False, True]
    chosen = SubmissionOptions(target="a.py", mixed=True)
    assert chosen.apply(Small()).set_deadline(within="2m").spec().mixed_gpu_types
    assert SubmissionOptions(target="a.py").apply(Mixed()).mixed_gpu_types, "no option keeps what the class says"
    assert chosen.command() == "eflow submit a.py --mixed"


def test_a_job_names_its_gpu_type_or_none():
    job = Small().set_deadline(within="2m")
    assert (job.spec().gpu_type, OnP100().set_deadline(within="2m").spec().gpu_type) == ("", "P100")
    assert job.set_gpus(gpu_type="V100").set_gpus(min_gpus=2).spec().gpu_type == "V100"
    with pytest.raises(InvalidJob, match="gpu_type: must be up to 64 letters"):
        job.set_gpus(gpu_type="two words").spec()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gpus_per_replica": 3}, "^gpus_per_replica: must be a power of two: 1, 2, 4, 8, ..., not 3$"),
        ({"gpus_per_replica": 0}, "^gpus_per_replica: "),
        ({"gpus_per_replica": 2048}, "^gpus_per_replica: .*1024"),
        ({"gpus_per_replica": 4, "min_gpus": 6}, "min_gpus: 6 is no multiple of gpus_per_replica, 4: choose 4 or 8"),
        ({"gpus_per_replica": 4, "max_gpus": 2}, "max_gpus: 2 is no multiple of gpus_per_replica, 4: choose 4, or"),
        ({"gpus_per_replica": 4, "mixed_gpu_types": True}, "mixed_gpu_types: the GPUs of a replica are of one type"),
    ],
)
def test_replicas_that_no_pool_can_give_are_refused_before_anything_is_sent(changes: dict[str, Any], why: str):
    job = TorchrunScript("train.py").set_hyperparameter(global_batch_size=8).term_condition(max_iterations=100)
    for name, value in changes.items():
        setattr(job, name, value)
    with pytest.raises(InvalidJob, match=why):
        job.set_deadline(within="2m").spec()


def test_a_script_says_how_many_gpus_hold_its_model_and_so_may_a_class():
    job = TorchrunScript("train.py").set_hyperparameter(global_batch_size=8).term_condition(max_iterations=100)
    spec = job.set_gpus(gpus_per_replica=4).set_deadline(within="2m").spec()
    assert (spec.gpus_per_replica, spec.gpu_range.least, spec.profile_family) == (4, 4, f"{spec.model_key}/b8")
    assert spec.model_key.endswith("#gang4")
    chosen = SubmissionOptions(target="train.py", torchrun=True, gpus_per_replica=4)
    assert chosen.command() == "eflow submit train.py --torchrun --gpus-per-replica 4"
    of_class = Small().set_gpus(gpus_per_replica=2).set_deadline(within="2m").spec()
    assert (spec.gang_size, of_class.gang_size) == (1, 2), "each process of a torchrun script is by itself"
    assert (spec.most_gpus, of_class.most_gpus) == (32, of_class.global_batch_size)


class Fast(Small):
    reproducible = "fast"


def test_the_fast_mode_divides_no_model():
    job = Fast().set_gpus(gpus_per_replica=2).set_deadline(within="2m")
    with pytest.raises(InvalidJob, match=r"gpus_per_replica: the fast mode .* fully_shard\(\) with --torchrun"):
        job.spec()


def test_a_mistyped_hyperparameter_is_refused_where_it_is_set():
    with pytest.raises(InvalidJob, match=r"hyperparameter learning_rat: Small declares .*; did you mean learning_rate"):
        Small().set_hyperparameter(learning_rat=0.2)
    free = ElasticJob().set_hyperparameter(global_batch_size=8).set_hyperparameter(width=3)
    assert free.hyperparameters["width"] == 3, "a class that declares none takes each"


def test_setters_change_one_job_only():
    Small().set_hyperparameter(learning_rate=0.5)
    assert Small().hyperparameters["learning_rate"] == 0.1


@pytest.mark.parametrize("at", [1_000_000, datetime.fromtimestamp(1_000_000, UTC)])
def test_absolute_deadline_is_seconds_since_1970(at):
    assert Small().set_deadline(at).spec().deadline_s == 1_000_000.0


def test_each_wrong_field_is_named():
    job = Small().set_hyperparameter(global_batch_size=0).term_condition(max_iterations=-1)
    job.metric_conditions = {"accuracy": ("==", 1.0)}  # pyright: ignore[reportAttributeAccessIssue]
    job.description = "x" * 30_000
    with pytest.raises(InvalidJob) as error:
        job.spec()
    fields = [problem.partition(":")[0] for problem in error.value.problems]
    assert fields == [
        "global_batch_size",
        "max_iterations",
        "metric_conditions.0.comparison",
        "description",
        "deadline",
    ]


def test_a_hyperparameter_of_a_wrong_type_is_named_once():
    job = Small().set_hyperparameter(learning_rate=float("inf"), layers=[3]).set_deadline(within=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidJob) as error:
        job.spec()
    assert error.value.problems == (
        "hyperparameters.learning_rate: must be a boolean, a finite number of 64 bits, "
        "or text of at most 256 characters, not inf",
        "hyperparameters.layers: must be a boolean, a finite number of 64 bits, "
        "or text of at most 256 characters, not [3]",
    )


DEEP: list[object] = []
for _ in range(50_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "value",
    [
        1 << 63,
        1 << 64,
        -(1 << 63) - 1,
        10**400,
        10**5000,
        math.nan,
        -math.inf,
        DEEP,
        b"x",
        1j,
        "donn\udce9es",
        "x" * 10**6,
    ],
    ids=lambda value: f"{type(value).__name__}",
)
@pytest.mark.parametrize("field", ["hyperparameters", "global_batch_size", "max_iterations", "seed", "min_gpus"])
def test_a_value_that_no_message_can_hold_is_refused_at_once(field: str, value: Any):
    job = Small().set_deadline(within=60)
    if field in ("hyperparameters", "global_batch_size"):
        job.hyperparameters = {**job.hyperparameters, field.replace("hyperparameters", "layers"): value}
    else:
        setattr(job, field, value)
    with pytest.raises(InvalidJob, match=f"^{field}"):
        job.spec()


@pytest.mark.parametrize("value", [10**400, -(10**400), math.nan, math.inf, DEEP])
def test_no_deadline_is_such_a_value(value: Any):
    for given in ({"deadline": value}, {"within": value}):
        with pytest.raises(InvalidJob, match="deadline"):
            Small().set_deadline(**given).spec()
    with pytest.raises(InvalidJob, match=r"deadline: 0001-01-01 00:00:00 is before 1970"):
        Small().set_deadline(datetime(1, 1, 1))  # noqa: DTZ001


def test_integers_keep_their_value_up_to_63_bits_and_numbers_of_numpy_are_plain():
    job = Small().set_deadline(within=np.float64(60))
    given: Any = {"global_batch_size": np.int64(64), "a": (1 << 63) - 1, "b": np.float32(0.5), "c": np.bool_(True)}
    job.hyperparameters = given
    spec = job.spec()
    sent = codec.encode(SubmitJob(job_id="j", tenant="t", spec=spec), id="1", recorded_at_s=0.0)
    received = codec.decode(sent).message
    assert isinstance(received, SubmitJob)
    assert received.spec.hyperparameters == {"a": (1 << 63) - 1, "b": 0.5, "c": True}
    assert [type(value) for value in received.spec.hyperparameters.values()] == [int, float, bool]


def test_the_longest_deadline_is_one_that_messages_can_hold():
    spec = Small().set_deadline(within=9.99e10).spec()
    assert spec.resolved_deadline_s(1.7e9) == MAX_TIME_S


def test_a_missing_field_is_named_with_its_setter_and_option():
    missed = r"global_batch_size: .*--batch; max_iterations: .*--iterations; deadline: .*--deadline"
    with pytest.raises(InvalidJob, match=missed):
        ElasticJob().spec()


def test_metric_condition_of_another_shape_is_explained():
    job = Small().term_condition(metric_conditions={"accuracy": 0.9})  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidJob, match="must be like"):
        job.set_deadline(within=1).spec()


@pytest.mark.parametrize("both", [{}, {"deadline": 1.0, "within": 1.0}])
def test_deadline_is_given_in_one_way(both):
    with pytest.raises(InvalidJob, match=r"either a datetime or within="):
        Small().set_deadline(**both)


@pytest.mark.parametrize("within", [timedelta(minutes=5), 300, 300.0, "5m", "300s"])
def test_durations_are_timedeltas_seconds_or_text(within):
    assert Small().set_deadline(within=within).spec().deadline_in_s == 300.0


def test_a_text_that_is_not_a_duration_is_named():
    with pytest.raises(InvalidJob, match=r"deadline: '5 minutes' is not a duration; write 90s"):
        Small().set_deadline(within="5 minutes")


def test_best_effort_has_no_deadline():
    assert Small().set_job_class("best_effort").spec().job_class == JobClass.BEST_EFFORT
    with pytest.raises(InvalidJob, match="a best_effort job has none"):
        Small().set_job_class("best_effort").set_deadline(within=1).spec()


def test_class_within_a_function_cannot_be_found_by_nodes():
    class Local(Small):
        pass

    with pytest.raises(InvalidJob, match="training_function"):
        Local().set_deadline(within=1).spec()


@pytest.mark.parametrize(
    ("statement", "libraries"),
    [
        ("import elasticflow", {"torch"}),
        ("import elasticflow.sdk.packaging", {"torch"}),
        ("import elasticflow.services.executor.processes.launcher", {"torch"}),
        ("import elasticflow.cli.app", {"nats", "pydantic", "structlog", "msgpack", "rich.table"}),
        ("from elasticflow.cli.app import Commands; list(Commands().values())", {"torch", "numba", "numpy"}),
        ("from elasticflow.cli.app import Commands; Commands()['jobs']", {"aiohttp.client", "numpy"}),
    ],
)
def test_a_large_library_is_imported_only_where_needed(statement, libraries):
    code = f"import sys; {statement}; print(*{libraries!r} & sys.modules.keys())"
    ran = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[4], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("\n", "")


class Mistyped(Small):
    virtual_node = 2
    seeds = (1, 2)  # of its own

    def on_steps(self) -> None: ...


def test_a_declaration_with_a_typing_error_is_refused():
    with pytest.raises(InvalidJob) as error:
        Mistyped().set_deadline(within="2m").spec()
    assert error.value.problems == (
        "Mistyped.virtual_node: a job has no such declaration; did you mean virtual_nodes? Give an attribute of your "
        "own another name",
        "Mistyped.on_steps: a job has no such declaration; did you mean on_step? Give an attribute of your own another "
        "name",
    )


class WithOwnInitMethods(Small):
    def init_model(self):
        return self.init_weights(super().init_model())

    def init_weights(self, model):
        return model

    def init_sampler(self): ...

    def init_optim(self, model): ...

    def init_schedules(self): ...


def test_a_method_init_that_nobody_calls_is_refused_unless_the_class_calls_it_itself():
    with pytest.raises(InvalidJob) as error:
        WithOwnInitMethods().set_deadline(within="2m").spec()
    known = "nobody calls it; a job calls init_dataset, init_model, init_optimizer"
    another = "Call it in one of these, or give a method of your own another name"
    assert error.value.problems == (
        f"WithOwnInitMethods.init_sampler: {known}; did you mean init_model or init_optimizer? A class has no sampler: "
        "let its data set draw the samples in set_epoch(epoch), as docs/explanation/data.md says",
        f"WithOwnInitMethods.init_optim: {known}; did you mean init_optimizer or init_model? {another}",
        f"WithOwnInitMethods.init_schedules: {known}. {another}",
    )
