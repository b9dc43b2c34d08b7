"""Answers of the public documentation of each provider, and the ends that they announce."""

from datetime import UTC, datetime

import pytest

from elasticflow.services.executor.end_notices.answers import (
    AWS_REBALANCE_S,
    aws_end,
    azure_end,
    file_end,
    gcp_end,
    slurm_end,
)

SINCE_S = 1_800_000_000.0


def utc_s(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


# --- EC2 -----------------------------------------------------------------------------------------------

# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
STOP = '{"action": "stop", "time": "2017-09-18T08:22:00Z"}'
TERMINATE = '{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
REBALANCE = '{"noticeTime": "2020-10-27T08:22:00Z"}'


def test_an_interruption_of_a_spot_instance_names_its_end() -> None:
    assert aws_end(TERMINATE, None) == aws_end(STOP, None) == utc_s("2017-09-18T08:22:00")
    assert aws_end(None, None) is None


def test_a_rebalance_recommendation_ends_a_machine_a_while_later_unless_it_is_interrupted_before() -> None:
    recommended_s = utc_s("2020-10-27T08:22:00") + AWS_REBALANCE_S
    assert aws_end(None, REBALANCE) == recommended_s
    later = '{"action": "terminate", "time": "2020-10-27T08:24:00Z"}'
    assert aws_end(later, REBALANCE) == utc_s("2020-10-27T08:24:00") < recommended_s


@pytest.mark.parametrize("answer", ["", "[]", "null", "{}", '{"time": 3}', '{"time": "soon"}', "<html>", "[" * 100_000])
def test_an_answer_that_ec2_never_gives_is_no_end(answer: str) -> None:
    with pytest.raises(ValueError):
        aws_end(answer, None)


# --- Compute Engine ------------------------------------------------------------------------------------


def test_a_preempted_instance_ends_30_s_after_it_was_said() -> None:
    # https://cloud.google.com/compute/docs/instances/create-use-preemptible
    assert gcp_end("FALSE", "NONE", SINCE_S, has_gpus=True) is None
    assert gcp_end("TRUE", "NONE", SINCE_S, has_gpus=True) == SINCE_S + 30.0
    assert gcp_end("TRUE", "TERMINATE_ON_HOST_MAINTENANCE", SINCE_S, has_gpus=True) == SINCE_S + 30.0


def test_maintenance_ends_an_instance_with_gpus_after_an_hour_and_others_after_a_minute() -> None:
    # https://cloud.google.com/compute/docs/gpus/gpu-host-maintenance
    assert gcp_end("FALSE", "TERMINATE_ON_HOST_MAINTENANCE", SINCE_S, has_gpus=True) == SINCE_S + 3600.0
    assert gcp_end("FALSE", "TERMINATE_ON_HOST_MAINTENANCE", SINCE_S, has_gpus=False) == SINCE_S + 60.0
    assert gcp_end("FALSE", "MIGRATE_ON_HOST_MAINTENANCE", SINCE_S, has_gpus=False) is None, "it goes on elsewhere"


@pytest.mark.parametrize(
    ("preempted", "maintenance"), [("", "NONE"), ("FALSE", ""), ("<html>", "NONE"), ("FALSE", "?")]
)
def test_an_answer_that_compute_engine_never_gives_is_no_end(preempted: str, maintenance: str) -> None:
    with pytest.raises(ValueError):
        gcp_end(preempted, maintenance, SINCE_S, has_gpus=False)


# --- Azure ---------------------------------------------------------------------------------------------


def azure_answer(event_type: str = "Preempt", status: str = "Scheduled", machine: str = "WestNO_0") -> str:
    """https://learn.microsoft.com/en-us/azure/virtual-machines/linux/scheduled-events#query-for-events"""
    not_before = "Mon, 19 Sep 2016 18:29:47 GMT" if status == "Scheduled" else ""
    return f"""{{
        "DocumentIncarnation": 2,
        "Events": [{{
            "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
            "EventStatus": "{status}",
            "EventType": "{event_type}",
            "ResourceType": "VirtualMachine",
            "Resources": ["{machine}", "WestNO_1"],
            "NotBefore": "{not_before}",
            "Description": "Virtual machine is being preempted",
            "EventSource": "Platform",
            "DurationInSeconds": -1
        }}]
    }}"""


@pytest.mark.parametrize("event_type", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_a_scheduled_event_ends_the_machines_that_it_names(event_type: str) -> None:
    ends_s = utc_s("2016-09-19T18:29:47")
    assert azure_end(azure_answer(event_type), "WestNO_0", SINCE_S) == ends_s
    assert azure_end(azure_answer(event_type), "WestNO_1", SINCE_S) == ends_s
    assert azure_end(azure_answer(event_type), "WestNO_2", SINCE_S) is None, "all of a scale set see it"


def test_an_event_that_has_begun_ends_the_machine_now_and_a_freeze_ends_none() -> None:
    assert azure_end(azure_answer(status="Started"), "WestNO_0", SINCE_S) == SINCE_S
    assert azure_end(azure_answer("Freeze"), "WestNO_0", SINCE_S) is None
    assert azure_end('{"DocumentIncarnation": 1, "Events": []}', "WestNO_0", SINCE_S) is None


@pytest.mark.parametrize("answer", ["", "[]", '{"Events": 3}', '{"Events": [3]}', azure_answer().replace("Mon,", "x")])
def test_an_answer_that_azure_never_gives_is_no_end(answer: str) -> None:
    with pytest.raises(ValueError):
        azure_end(answer.replace("19 Sep 2016", "soon"), "WestNO_0", SINCE_S)


# --- Slurm and files -----------------------------------------------------------------------------------

# https://slurm.schedmd.com/scontrol.html: --oneliner, shortened
SCONTROL = (
    "JobId=65541 JobName=nodes UserId=a(1000) JobState=RUNNING RunTime=00:00:09 TimeLimit=00:02:00 "
    "SubmitTime=2026-05-01T17:58:00 EligibleTime=2026-05-01T17:58:00 StartTime=2026-05-01T17:58:00 EndTime={} "
    "Deadline=N/A SuspendTime=None Partition=gpu NodeList=n1"
)


def test_an_allocation_ends_when_scontrol_says_so() -> None:
    assert slurm_end(SCONTROL.format("1777658400")) == 1_777_658_400.0
    local_s = datetime.fromisoformat("2026-05-01T18:00:00").timestamp()
    assert slurm_end(SCONTROL.format("2026-05-01T18:00:00")) == local_s
    assert slurm_end(SCONTROL.format("Unknown")) is None, "without a limit"
    with pytest.raises(ValueError, match="no EndTime"):
        slurm_end("No jobs in the system\n")


def test_a_file_has_a_time_or_a_duration_since_it_was_written() -> None:
    assert file_end("2m\n", SINCE_S) == SINCE_S + 120.0
    assert file_end("1800000120", SINCE_S) == 1_800_000_120.0
    assert file_end("2027-01-15T08:02:00+00:00", SINCE_S) == 1_800_000_120.0
    assert [file_end(text, SINCE_S) for text in ("", "\n", "never\n")] == [None] * 3


@pytest.mark.parametrize("text", ["soon", "120", "18000", "9" * 400, "9" * 5_000, "99999999999999d", "2m 3"])
def test_a_file_that_is_half_written_or_has_no_unit_ends_no_machine(text: str) -> None:
    with pytest.raises(ValueError):
        file_end(text, SINCE_S)
