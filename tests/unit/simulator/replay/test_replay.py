"""A recorded ledger: its state at any point, its decisions retaken, and the command for both."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from elasticflow.shared.messages import codec, events, subjects
from elasticflow.shared.messages.commands import Command, OpenLoad, SubmitJob
from elasticflow.shared.messages.events import Event, NodeJoined, PlanDecided
from elasticflow.shared.messages.export import ExportWriter, LedgerRecord, read_export
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.service.ledger_encoding import read_message, subject_of
from elasticflow.shared.state.fold.ledger_fold import Unreadable
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.__main__ import app
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.replay.recorded_ledger import OPERATOR, exogenous_events, folded, read_entries, up_to
from elasticflow.simulator.replay.retaken_decisions import differences, verify
from elasticflow.simulator.replay.state_tables import as_object, tables
from testbed.histories import NOW_S, submit
from testbed.simulated_runs import short_storm

POOL = "default"


class Recording:
    """A ledger that grows by the decisions of the real planners, a second apart."""

    def __init__(self) -> None:
        self.records: list[LedgerRecord] = []
        self.state = PoolState()

    @property
    def now_s(self) -> float:
        return NOW_S + len(self.records)

    def write(self, subject: str, message: Event | PlanDecided | SubmitJob) -> None:
        self.write_bytes(subject, codec.encode(message, id=f"id-{len(self.records)}", recorded_at_s=self.now_s))

    def write_bytes(self, subject: str, data: bytes) -> None:
        record = LedgerRecord(
            sequence=len(self.records) + 1,
            subject=subject,
            message_id=f"id-{len(self.records)}",
            stored_at_s=self.now_s,
            data=data,
        )
        self.records.append(record)
        self.state = folded(read_entries((record,)), self.state)

    def fact(self, event: Event) -> None:
        self.write(subject_of(POOL, event), event)

    def given(self, event: events.PlanEvent) -> None:
        decision = PlanDecided(service=OPERATOR, based_on=self.state.sequence, now_s=self.now_s, events=(event,))
        self.write(subjects.plan(POOL), decision)

    def decide(self, service: str, *commands: Command, meanwhile: tuple[Event, ...] = ()) -> None:
        """meanwhile: events that reach the ledger between the decision's basis and the decision."""
        decided = planners()[service].decide(self.state, commands, self.now_s)
        decision = PlanDecided(
            service=service,
            based_on=self.state.sequence,
            now_s=self.now_s,
            commands=commands,
            events=decided,
        )
        for event in meanwhile:
            self.fact(event)
        self.write(subjects.plan(POOL), decision)

    def change_plan(self, sequence: int, **changes: Any) -> None:
        """Change the decision at this sequence."""
        record = self.records[sequence - 1]
        plan = codec.decode(record.data).message
        assert isinstance(plan, PlanDecided)
        data = codec.encode(replace(plan, **changes), id=record.message_id, recorded_at_s=plan.now_s)
        self.records[sequence - 1] = replace(record, data=data)


def joined(number: int) -> events.NodeJoined:
    return events.NodeJoined(node_id=f"node-{number}", incarnation="first", num_gpus=4, device="cpu", at_s=NOW_S)


@pytest.fixture
def recording() -> Recording:
    """Two nodes; job one is admitted and placed, job two has a deadline that cannot be met."""
    recording = Recording()
    curves = {"linear/b64": {1: 1.0, 2: 2.0, 4: 4.0}}
    recording.given(events.PoolConfigured(config=PoolConfig(curves=curves), at_s=NOW_S))
    recording.fact(joined(0))
    recording.decide("admission", submit("one"), meanwhile=(joined(1),))
    recording.decide("allocator")
    recording.decide("placement")
    recording.decide("admission", submit("two", max_iterations=100_000))
    assert recording.state.sequence == 7
    return recording


@pytest.fixture
def file(recording: Recording, tmp_path: Path) -> Path:
    return exported(recording, tmp_path)


def written(records: Iterable[LedgerRecord], folder: Path) -> Path:
    path = folder / "run.ledger"
    with path.open("wb") as out:
        writer = ExportWriter(out)
        for record in records:
            writer.add(record)
        writer.finish()
    return path


def exported(recording: Recording, folder: Path) -> Path:
    return written(recording.records, folder)


# --- fold -----------------------------------------------------------------------------------------------


def test_what_ends_a_profiling_run_is_exogenous(recording: Recording) -> None:
    failed = events.ProfilingFailed(job_id="one", generation=1, gpu_type="P100", error="no memory", at_s=NOW_S)
    recording.fact(failed)
    assert [each.event for each in exogenous_events(read_entries(recording.records))][-1] == failed


def test_what_announces_the_end_of_a_machine_is_exogenous(recording: Recording) -> None:
    """Under another policy its jobs leave it in time as well."""
    noticed = events.NodeEndNoticed(node_id="node-0", incarnation="i", until_s=NOW_S + 120.0, at_s=NOW_S)
    recording.fact(noticed)
    assert [each.event for each in exogenous_events(read_entries(recording.records))][-1] == noticed


def test_the_state_at_a_sequence_or_an_instant(recording: Recording) -> None:
    entries = read_entries(recording.records)
    assert folded(up_to(entries, sequence=0)) == PoolState()
    assert folded(up_to(entries, sequence=4)).live_jobs["one"].gpus == ()
    assert folded(up_to(entries, sequence=6)).live_jobs["one"].gpus != ()
    assert folded(up_to(entries, at_s=entries[3].stored_at_s)) == folded(entries[:4])
    assert folded(up_to(entries, at_s=NOW_S - 1.0)) == PoolState()
    assert folded(entries) == recording.state
    assert recording.state.ended_jobs["two"].phase is Phase.REJECTED


def test_a_message_that_cannot_be_decoded_is_skipped_with_its_reason(recording: Recording) -> None:
    recording.write_bytes(subjects.plan(POOL), b"\xc1 what is this")
    recording.write(subjects.plan(POOL), submit("commands do not belong in a ledger".replace(" ", "-")))
    recording.decide("admission", submit("three", max_iterations=100_000))
    entries = read_entries(recording.records)
    assert [isinstance(entry.message, Unreadable) for entry in entries[7:]] == [True, True, False]
    assert "three" in folded(entries).ended_jobs
    assert verify(entries, planners()).difference is None


# --- verify ---------------------------------------------------------------------------------------------


def test_a_true_history_is_verified_with_events_between_decisions(recording: Recording) -> None:
    verification = verify(read_entries(recording.records), planners())
    assert (verification.num_verified, verification.num_given) == (4, 1)
    assert verification.difference is None


def test_the_first_decision_that_differs_is_named_field_by_field(recording: Recording) -> None:
    plan = read_entries(recording.records)[4].message
    assert isinstance(plan, PlanDecided)
    (allocation,) = plan.events
    assert isinstance(allocation, events.AllocationDecided)
    other = replace(allocation, num_gpus_by_job={"one": 2 * allocation.num_gpus_by_job["one"]})
    recording.change_plan(5, events=(other,))
    verification = verify(read_entries(recording.records), planners())
    assert verification.num_verified == 1
    difference = verification.difference
    assert difference is not None
    assert (difference.sequence, difference.service, difference.based_on) == (5, "allocator", 4)
    (field,) = difference.fields
    assert field.path == "events[0].num_gpus_by_job[one]"
    assert field.recorded == 2 * field.again


def test_a_decision_that_did_not_know_the_one_before_is_reported(recording: Recording) -> None:
    recording.change_plan(6, based_on=4)
    difference = verify(read_entries(recording.records), planners()).difference
    assert difference is not None
    assert difference.sequence == 6
    assert difference.fields[0].path == "based_on"


def test_a_decision_of_an_unknown_service_is_reported(recording: Recording) -> None:
    recording.change_plan(5, service="oracle")
    difference = verify(read_entries(recording.records), planners()).difference
    assert difference is not None
    assert difference.fields[0].path == "service"


def test_a_policy_that_decides_differently_is_reported(recording: Recording) -> None:
    silent = replace(planners()["placement"], decide=lambda state, commands, now_s: ())
    policies: dict[str, Policy[PoolState]] = {**planners(), "placement": silent}
    difference = verify(read_entries(recording.records), policies).difference
    assert difference is not None
    assert (difference.sequence, difference.fields[0].path, difference.fields[0].again) == (
        6,
        "events[0]",
        None,
    )


def test_differences_go_as_deep_as_both_sides_agree_in_shape() -> None:
    assert list(differences((1, {"a": 2}), (1, {"a": 2}))) == []
    found = {d.path: (d.recorded, d.again) for d in differences((1, {"a": 2, "b": 3}), (1, {"a": 4}, 5), "x")}
    assert found == {"x[1][a]": (2, 4), "x[1][b]": (3, None), "x[2]": (None, 5)}


# --- the command ----------------------------------------------------------------------------------------


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


def test_the_state_as_tables_and_as_json(file: Path) -> None:
    shown = replay(file)
    assert shown.exit_code == 0
    assert "one" in shown.stdout
    assert "node-1" in shown.stdout
    assert "\x1b" not in shown.stdout  # colour only on terminals
    state = json.loads(replay(file, "--until", 6, "--json").stdout)
    assert state["sequence"] == 6
    assert [job["job_id"] for job in state["jobs"]] == ["one"]
    assert state["num_gpus"] == 8
    assert state["jobs"][0]["gpus"]


def test_nodes_show_the_idle_gpus_of_padding_while_a_load_is_live(recording: Recording) -> None:
    assert [node["num_padding_gpus"] for node in as_object(recording.state, NOW_S)["nodes"]] == [0, 0]
    load = LoadSpec(task_function="proteins:fold", task_s=0.5)
    recording.decide("admission", OpenLoad(load_id="fold", tenant="lab", spec=load))
    nodes = as_object(recording.state, NOW_S)["nodes"]
    num_idle = [node["num_gpus"] - node["num_gpus_placed"] for node in nodes]
    assert [node["num_padding_gpus"] for node in nodes] == num_idle
    assert 0 < sum(num_idle) < 8, "the job has GPUs, too"


def test_every_phase_has_its_colour(recording: Recording) -> None:
    shown = as_object(recording.state, NOW_S)
    for phase in Phase:
        assert tables(shown | {"jobs": [shown["jobs"][0] | {"phase": phase.value}]}).renderables


@pytest.mark.parametrize("instant", [f"{NOW_S + 3.5}", "2027-01-15T08:00:03.5Z", "2027-01-15T09:00:03.5+01:00"])
def test_an_instant_may_be_given_in_seconds_or_in_iso_8601(file: Path, instant: str) -> None:
    state = json.loads(replay(file, "--at", instant, "--json").stdout)
    assert (state["sequence"], state["at_s"]) == (4, NOW_S + 3.5)


def test_verify_says_how_many_and_fails_where_one_differs(recording: Recording, tmp_path: Path) -> None:
    good = replay(exported(recording, tmp_path), "--verify")
    assert good.exit_code == 0
    assert "4 decisions verified (1 of the operator is given)" in good.stdout
    recording.change_plan(7, now_s=NOW_S)
    path = exported(recording, tmp_path)
    bad = replay(path, "--verify")
    assert bad.exit_code == 1
    assert "admission at sequence 7" in bad.stdout
    assert "events[0].at_s" in bad.stdout
    as_json = replay(path, "--verify", "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["difference"]["sequence"] == 7


def test_verify_says_whether_the_messages_are_those_on_which_the_services_decided(tmp_path: Path) -> None:
    records = short_storm(3).records
    path = written(records, tmp_path)
    assert "the chain of the ledger holds at" in replay(path, "--verify").stdout
    changed = next(record for record in records if isinstance(read_message(record), NodeJoined))
    records[changed.sequence - 1] = replace(changed, stored_at_s=0.0, data=changed.data.replace(b"cpu", b"gpu"))
    bad = replay(written(records, tmp_path), "--verify")
    assert bad.exit_code == 1
    assert "the ledger was changed: messages" in bad.stdout
    found = json.loads(replay(path, "--verify", "--json").stdout)["chain"]["breaks"][0]
    assert found["first"] <= changed.sequence <= found["last"]


def test_follow_prints_an_event_a_line_and_one_job_if_wanted(file: Path) -> None:
    lines = replay(file, "--follow").stdout.splitlines()
    assert [line.split()[2] for line in lines] == [
        "PoolConfigured",
        "NodeJoined",
        "NodeJoined",
        "JobAdmitted",
        "AllocationDecided",
        "PlacementDecided",
        "JobRejected",
    ]
    of_two = replay(file, "--follow", "--job", "two", "--json").stdout.splitlines()
    assert [json.loads(line)["event"] for line in of_two] == ["JobRejected"]


def bad_files(folder: Path, good: Path) -> Iterator[tuple[Path, str]]:
    foreign, cut, damaged = folder / "foreign", folder / "cut", folder / "damaged"
    foreign.write_bytes(b"PK\x03\x04 an archive")
    data = good.read_bytes()
    cut.write_bytes(data[:-100])
    damaged.write_bytes(data.replace(b"node-1", b"node-9", 1))
    yield folder / "missing", "No such file"
    yield folder, "directory"
    yield foreign, "not an export of an ElasticFlow ledger"
    yield cut, "cut off after sequence"
    yield damaged, "damaged at sequence 3"


def test_files_that_cannot_be_replayed_are_refused_with_the_reason(file: Path, tmp_path: Path) -> None:
    for path, reason in bad_files(tmp_path, file):
        for option in ("--json", "--verify", "--follow"):
            refused = replay(path, option)
            assert refused.exit_code == 2, path
            assert reason in refused.stderr, path
            assert refused.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--until", 8),
        ("--job", "unknown"),
        ("--at", "yesterday"),
        ("--at", "nan"),
        ("--at", "0001-01-01T00:00+14:00"),
        ("--at", "1e999"),
        ("--until", 1, "--at", NOW_S),
    ],
)
def test_a_place_that_is_not_in_the_ledger_is_refused(file: Path, arguments: tuple[object, ...]) -> None:
    assert replay(file, *arguments).exit_code == 2


def test_an_empty_ledger_is_a_ledger(tmp_path: Path) -> None:
    path = exported(Recording(), tmp_path)
    assert json.loads(replay(path, "--json").stdout)["jobs"] == []
    assert "0 decisions verified" in replay(path, "--verify").stdout


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_decisions_do_not_depend_on_the_order_of_hashes(file: Path, hash_seed: str) -> None:
    """Another process orders sets and persistent maps differently; this finds ties that are broken by their order."""
    done = subprocess.run(
        [sys.executable, "-m", "elasticflow.simulator", "replay", file, "--verify"],
        env={"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_a_replay_with_130_and_no_traceback(file: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "elasticflow.simulator",
        "replay",
        str(file),
        "--follow",
        "--delay",
        "60",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it steps, and now it waits
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in complaints


def test_a_closed_output_is_not_a_failure(file: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "elasticflow.simulator",
        "replay",
        str(file),
        "--follow",
        "--delay",
        "0.01",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        complaints = process.stderr.read()
    assert (process.returncode, complaints) == (0, "")


def test_a_ledger_from_standard_input_is_followed_until_it_is_damaged(recording: Recording) -> None:
    whole = io.BytesIO()
    writer = ExportWriter(whole)
    for record in recording.records:
        writer.add(record)
    shown = CliRunner().invoke(app, ["replay", "-", "--json"], input=whole.getvalue())
    assert shown.exit_code == 2
    assert "cut off after sequence 7" in shown.stderr
    assert [json.loads(row)["sequence"] for row in shown.stdout.splitlines()][-1] == 7
    writer.finish()
    assert CliRunner().invoke(app, ["replay", "-", "--json"], input=whole.getvalue()).exit_code == 0
    assert CliRunner().invoke(app, ["replay", "-"], input=b"something else").exit_code == 2


def test_an_instant_before_the_ledger_is_refused_and_one_after_its_begin_is_read(file: Path) -> None:
    refused = replay(file, "--at", "400")
    assert refused.exit_code == 2
    assert (
        "--at 400: 1970-01-01T00:06:40.000Z is before the ledger, which begins at 2027-01-15T08:00:" in refused.stderr
    )
    assert "for 400 s after its begin write --at +400" in refused.stderr
    with file.open("rb") as opened:
        begin_s = read_export(opened)[0].stored_at_s
    relative = json.loads(replay(file, "--at", "+1.5", "--json").stdout)
    assert relative["at_s"] == begin_s + 1.5
    assert relative == json.loads(replay(file, "--at", str(begin_s + 1.5), "--json").stdout)


def test_a_plain_replay_loads_no_compiled_loops(file: Path) -> None:
    code = "import sys; from elasticflow.simulator.replay.command import app; app([sys.argv[1]], standalone_mode=False)"
    code += "; sys.exit('numba' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code, str(file)], check=False, capture_output=True)
    assert ran.returncode == 0, ran.stderr
