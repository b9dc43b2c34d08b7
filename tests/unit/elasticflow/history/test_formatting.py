"""Input and output of the command line: times, settings, and the command that a rejection suggests."""

import pytest
import typer

from elasticflow.cli.job_options import ClassName, SubmissionOptions
from elasticflow.cli.option_values import parse_gpus, parse_setting
from elasticflow.cli.terminal_output import say_line
from elasticflow.client.command_requests import fresh_job_id
from elasticflow.history.formatting import profiled_spec_in_words, schedule_in_words
from elasticflow.sdk.job import ElasticJob
from elasticflow.times import duration_in_words, moment_in_words, parse_deadline, seconds_of
from testbed.histories import spec


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("1.5h", 5400.0), ("2h30m", 9000.0), ("1d", 86_400.0), ("0s", 0.0)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert parse_deadline(text).within == seconds


def test_a_time_with_a_zone_is_absolute() -> None:
    deadline = parse_deadline("2026-01-01T00:00:00+00:00").deadline
    assert deadline is not None
    assert deadline.timestamp() == 1_767_225_600.0


@pytest.mark.parametrize("text", ["soon", "90", "s", "-5s", "1h 30m", ""])
def test_what_is_no_deadline_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time; write a duration \(90s"):
        parse_deadline(text)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0s"),
        (59.94, "59.9s"),
        (59.96, "1m 00s"),
        (3599.6, "1h 00m"),
        (9000.0, "2h 30m"),
        (90_000.0, "1d 01h"),
        (-75.0, "-1m 15s"),
    ],
)
def test_durations_are_shown_in_two_units(seconds: float, words: str) -> None:
    assert duration_in_words(seconds) == words


def test_a_moment_is_ahead_or_behind() -> None:
    assert moment_in_words(100.0, 78.8).endswith(" (in 21.2s)")
    assert moment_in_words(100.0, 175.0).endswith(" (1m 15s ago)")


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("lr=0.1", ("lr", 0.1)),
        ("layers=3", ("layers", 3)),
        ("nesterov=true", ("nesterov", True)),
        ("name=adam", ("name", "adam")),
        ("path=a=b", ("path", "a=b")),
        ("empty=", ("empty", "")),
        ('list=[1, "2"]', ("list", '[1, "2"]')),
    ],
)
def test_settings_keep_their_type(text: str, setting: tuple[str, object]) -> None:
    assert parse_setting(text) == setting
    assert type(parse_setting(text)[1]) is type(setting[1])


@pytest.mark.parametrize(("text", "ends"), [("4", (4, 4)), ("2..8", (2, 8)), ("2..", (2, None)), ("..8", (None, 8))])
def test_a_range_of_gpus_is_read(text: str, ends: tuple[int | None, int | None]) -> None:
    assert parse_gpus(text) == ends


@pytest.mark.parametrize("text", ["..", "two", "1-2", "-1", "2...8", ""])
def test_what_is_no_range_is_refused_with_examples(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"is not like 4, 2\.\.8"):
        parse_gpus(text)


@pytest.mark.parametrize("text", ["lr", "=1", "a b=1"])
def test_what_is_no_setting_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not NAME=VALUE"):
        parse_setting(text)


def test_submission_options_repeat_their_command_line() -> None:
    options = SubmissionOptions(
        target="my file.py:Net",
        deadline="22s",
        batch=64,
        settings=("name=a b",),
        job_class=ClassName.SOFT,
        where=("--pool", "lab"),
    )
    assert options.command() == (
        "eflow submit 'my file.py:Net' --deadline 22s --batch 64 --set 'name=a b' --class soft --pool lab"
    )


def test_a_batch_size_may_also_be_set_by_its_name() -> None:
    named = SubmissionOptions(target="t.py", settings=("global_batch_size=32",))
    assert named.apply(ElasticJob()).hyperparameters["global_batch_size"] == 32
    both = SubmissionOptions(target="t.py", settings=("global_batch_size=32",), batch=64)
    assert both.apply(ElasticJob()).hyperparameters["global_batch_size"] == 64


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("lab.nets:DigitsCNN", "digits-cnn"),
        ("lab.train_text:__main__", "train-text"),
        ("old:__torchrun__", "old"),
        ("train.v2 (1).py:__main__", "train-v2-1"),
        ("ünïcode:Ü", "job"),
    ],
)
def test_a_job_without_a_name_is_called_after_its_class_or_its_script(function: str, name: str) -> None:
    assert fresh_job_id(spec(training_function=function)).rpartition("-")[0] == name


def test_a_schedule_in_words() -> None:
    schedule = (0.0, 40.0, 1, 40.0, 120.0, 4)
    assert schedule_in_words(schedule) == "1 GPU for 40.0s, then 4 GPUs for 1m 20s"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"min_gpus": 1, "max_gpus": 1}, " on 1 GPU only"),
        ({"min_gpus": 4, "max_gpus": 4}, " on 4 GPUs only"),
        ({"min_gpus": 2}, " on 2.. GPUs only"),
        ({"max_gpus": 8}, " on ..8 GPUs only"),
    ],
)
def test_a_range_of_gpus_is_a_part_of_the_work(changes: dict[str, int], words: str) -> None:
    assert profiled_spec_in_words(spec(**changes)) == f"examples.digits:Digits, iterations of 64 samples{words}"


def test_a_plain_line_comes_out_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    line = "g1-r0 | step\t7 " + 300 * "x"
    say_line(line)
    assert capsys.readouterr().out == line + "\n"


def test_a_profile_names_the_gpus_of_a_replica() -> None:
    described = profiled_spec_in_words(spec(training_function="train:__torchrun__", gpus_per_replica=2))
    assert described == "train:__torchrun__, iterations of 64 samples on 2.. GPUs only, 2 for each replica"
