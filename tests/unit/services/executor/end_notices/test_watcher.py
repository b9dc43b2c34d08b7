"""What the watcher tells of the answers of real services on loopback, of Slurm's command and of files."""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from elasticflow.services.executor.decisions.local_events_and_actions import EndNoticed
from elasticflow.services.executor.end_notices import sources
from elasticflow.services.executor.end_notices import watcher as module
from elasticflow.services.executor.end_notices.sources import Source, source_of
from elasticflow.services.executor.end_notices.watcher import EndWatcher
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.runtime.process.logs import log
from tests.support.metadata_service import (
    EVENTS,
    INSTANCE_ACTION,
    MAINTENANCE,
    PREEMPTED,
    REBALANCE,
    Cloud,
    FakeMetadata,
    metadata_service,
)

NOW_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z
PATIENCE_S = 60.0


class HandClock:
    def __init__(self) -> None:
        self.at_s = NOW_S

    def now_s(self) -> float:
        return self.at_s

    async def sleep_until(self, at_s: float) -> None:
        raise AssertionError("the watcher sleeps by intervals")


class Watched:
    """A watcher that asks without a pause. told: the newest last."""

    def __init__(self, until_notice: str, source: Source) -> None:
        source.every_s = 0.005
        self.clock, self.told = HandClock(), list[float | None]()
        self._changed = asyncio.Event()
        self.watcher = EndWatcher(until_notice, source, self.clock, log)

    def tell(self, noticed: EndNoticed) -> None:
        assert noticed.at_s == self.clock.at_s
        self.told.append(noticed.until_s)
        self._changed.set()

    async def until_told(self, *ends_s: float | None) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while tuple(self.told) != ends_s:
                self._changed.clear()
                await self._changed.wait()
                assert len(self.told) <= len(ends_s), self.told


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "_LAST_PAUSE_S", 0.005)


def of_cloud(cloud: str, address: str, *, has_gpus: bool = False) -> Watched:
    return Watched(cloud, source_of(cloud, address, has_gpus=has_gpus, environment={}))


async def asked_again(service: FakeMetadata) -> None:
    """Return once answers of now have been read."""
    seen = service.num_questions
    async with asyncio.timeout(PATIENCE_S):
        while service.num_questions < seen + 6:  # noqa: ASYNC110 - another thread counts
            await asyncio.sleep(0.005)


async def watched(watched: Watched, steps: Callable[[], Awaitable[None]]) -> None:
    await watched.watcher.check()
    watching = asyncio.create_task(watched.watcher.run(watched.tell))
    try:
        await steps()
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def test_ec2_interrupts_moves_and_withdraws_and_its_tokens_expire() -> None:
    with metadata_service("aws") as service:
        node = of_cloud("aws", service.address)

        async def steps() -> None:
            await node.until_told(None)
            service.items[REBALANCE] = '{"noticeTime": "2027-01-15T08:00:00Z"}'
            await node.until_told(None, NOW_S + 600.0)
            service.expire_token()
            service.items[INSTANCE_ACTION] = '{"action": "terminate", "time": "2027-01-15T08:02:00Z"}'
            await node.until_told(None, NOW_S + 600.0, NOW_S + 120.0)
            service.items[INSTANCE_ACTION] = '{"action": "terminate", "time": "2027-01-15T08:03:00Z"}'
            await node.until_told(None, NOW_S + 600.0, NOW_S + 120.0, NOW_S + 180.0)
            service.items.clear()
            await node.until_told(None, NOW_S + 600.0, NOW_S + 120.0, NOW_S + 180.0, None)

        await watched(node, steps)
        assert service.num_tokens == 2, "a token is used as long as it holds"


async def test_compute_engine_preempts_30_s_after_it_was_first_said() -> None:
    with metadata_service("gcp") as service:
        node = of_cloud("gcp", service.address, has_gpus=True)

        async def steps() -> None:
            await node.until_told(None)
            service.items[MAINTENANCE] = "TERMINATE_ON_HOST_MAINTENANCE"
            await node.until_told(None, NOW_S + 3600.0)
            node.clock.at_s += 10.0  # the same answer again: the end stays
            service.items[MAINTENANCE] = "NONE"
            await node.until_told(None, NOW_S + 3600.0, None)
            service.items[PREEMPTED] = "TRUE"
            await node.until_told(None, NOW_S + 3600.0, None, NOW_S + 40.0)
            node.clock.at_s += 5.0
            service.items[MAINTENANCE] = "TERMINATE_ON_HOST_MAINTENANCE"
            await asked_again(service)
            assert node.told[-1] == NOW_S + 40.0, "another answer that says the same of the preemption"

        await watched(node, steps)


async def test_azure_schedules_events_for_this_machine_and_for_others() -> None:
    def scheduled(machine: str, incarnation: int) -> str:
        event = {
            "EventId": "f020ba2e-3bc0-4c40-a10b-86575a9eabd5",
            "EventType": "Preempt",
            "ResourceType": "VirtualMachine",
            "Resources": [machine],
            "EventStatus": "Scheduled",
            "NotBefore": "Fri, 15 Jan 2027 08:00:30 GMT",
        }
        return json.dumps({"DocumentIncarnation": incarnation, "Events": [event]})

    with metadata_service("azure") as service:
        node = of_cloud("azure", service.address)

        async def steps() -> None:
            await node.until_told(None)
            service.items[EVENTS] = scheduled("vm-1", 2)
            service.items[EVENTS] = scheduled("vm-0", 3)
            await node.until_told(None, NOW_S + 30.0)

        await watched(node, steps)


async def test_what_azure_says_of_other_machines_moves_no_end_that_has_begun() -> None:
    def begun(incarnation: int) -> str:
        event = {"EventType": "Preempt", "Resources": ["vm-0"], "EventStatus": "Started", "NotBefore": ""}
        return json.dumps({"DocumentIncarnation": incarnation, "Events": [event]})

    with metadata_service("azure") as service:
        node = of_cloud("azure", service.address)

        async def steps() -> None:
            service.items[EVENTS] = begun(2)
            await node.until_told(None, NOW_S)
            node.clock.at_s += 5.0
            service.items[EVENTS] = begun(3)
            await asked_again(service)
            assert node.told == [None, NOW_S]

        await watched(node, steps)


async def test_a_service_that_fails_for_a_while_takes_nothing_back() -> None:
    with metadata_service("gcp") as service:
        node = of_cloud("gcp", service.address)

        async def steps() -> None:
            service.items[PREEMPTED] = "TRUE"
            await node.until_told(None, NOW_S + 30.0)
            service.is_down = True
            await asked_again(service)
            service.is_down, service.items[PREEMPTED] = False, "perhaps"
            await asked_again(service)
            service.items[PREEMPTED] = "FALSE"
            await node.until_told(None, NOW_S + 30.0, None)

        await watched(node, steps)


@pytest.mark.parametrize(
    ("cloud", "says"), [("aws", "no EC2 instance"), ("gcp", "no instance of Compute Engine"), ("azure", "no virtual")]
)
async def test_a_machine_without_the_service_is_refused(cloud: str, says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(BadSettings) as refused:
        await of_cloud(cloud, address).watcher.check()
    said = str(refused.value)
    assert f"metadata service answers at {address}" in said
    assert says in said
    assert "leave --until-notice out" in said


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
@pytest.mark.parametrize("sends", [b"", b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 70_000, b"220 mail.example\r\n"])
async def test_a_service_that_never_ends_its_answer_is_refused(
    cloud: str, sends: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_REPLY_S", 0.2)

    writers = list[asyncio.StreamWriter]()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sends)
        writers.append(writer)  # it stays open

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(BadSettings, match="leave --until-notice out"):
            await of_cloud(cloud, address).watcher.check()
        for writer in writers:
            writer.close()


@pytest.mark.parametrize(("asked", "real"), [("aws", "gcp"), ("aws", "azure"), ("gcp", "aws"), ("azure", "gcp")])
async def test_the_service_of_another_cloud_at_the_same_address_is_refused(asked: Cloud, real: Cloud) -> None:
    with metadata_service(real) as service, pytest.raises(BadSettings, match="leave --until-notice out"):
        await of_cloud(asked, service.address).watcher.check()


async def test_azure_may_take_two_minutes_to_enable_the_events_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with metadata_service("azure") as service:
        source = source_of("azure", service.address, has_gpus=False, environment={})
        answers = source.ask()
        assert source.end_s(answers, NOW_S) is None
        late = source_of("azure", service.address, has_gpus=False, environment={})
        monkeypatch.setattr(late, "_text", lambda path: "vm-0" if "compute/name" in path else _times_out())
        assert late.end_s(late.ask(), NOW_S) is None
        with pytest.raises(TimeoutError):
            late.ask()


def _times_out() -> str:
    raise TimeoutError


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with metadata_service("gcp") as service:
        await of_cloud("gcp", service.address).watcher.check()


# --- Slurm ---------------------------------------------------------------------------------------------


def scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command of this name that prints a file. It stands for Slurm's, which is not installed where tests run."""
    shown, command = folder / "shown", folder / "scontrol"
    command.write_text(
        f'#!/bin/sh\n[ "$*" = "show job --oneliner 7" ] && [ "$SLURM_TIME_FORMAT" = %s ] && cat "{shown}"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return shown


async def test_the_end_of_an_allocation_moves_with_scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = scontrol(tmp_path, monkeypatch)
    shown.write_text("JobId=7 EndTime=1800000600 Deadline=N/A\n")
    node = Watched("slurm", source_of("slurm", "", has_gpus=False, environment={"SLURM_JOB_ID": "7"}))

    async def steps() -> None:
        await node.until_told(NOW_S + 600.0)
        (tmp_path / "new").write_text("JobId=7 EndTime=1800007200 Deadline=N/A\n")
        (tmp_path / "new").rename(shown)
        await node.until_told(NOW_S + 600.0, NOW_S + 7200.0)

    await watched(node, steps)


async def test_without_scontrol_the_end_is_that_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1800000600"}
    node = Watched("slurm", source_of("slurm", "", has_gpus=False, environment=variables))
    await watched(node, lambda: node.until_told(NOW_S + 600.0))
    with pytest.raises(BadSettings, match="in no allocation of Slurm, leave --until-notice out"):
        await Watched("slurm", source_of("slurm", "", has_gpus=False, environment={})).watcher.check()


# --- files ---------------------------------------------------------------------------------------------


def of_file(path: Path) -> Watched:
    return Watched("file", source_of(f"file:{path}", "", has_gpus=False, environment={}))


def write(path: Path, text: str, written_s: float = NOW_S) -> None:
    new = path.with_name("new")
    new.write_text(text)
    os.utime(new, (written_s, written_s))
    new.rename(path)


async def test_a_file_comes_is_written_again_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "end"
    node = of_file(path)

    async def steps() -> None:
        await node.until_told(None)
        write(path, "2m")
        await node.until_told(None, NOW_S + 120.0)
        write(path, "2m", NOW_S + 60.0)
        await node.until_told(None, NOW_S + 120.0, NOW_S + 180.0)
        write(path, "soon")
        write(path, "1800000900")
        await node.until_told(None, NOW_S + 120.0, NOW_S + 180.0, NOW_S + 900.0)
        path.unlink()
        await node.until_told(None, NOW_S + 120.0, NOW_S + 180.0, NOW_S + 900.0, None)

    await watched(node, steps)


@pytest.mark.parametrize(
    ("text", "says"),
    [("soon", "is not a time"), ("120", "write a duration with its unit"), ("1800000000", "ended at")],
    ids=["no time", "no unit", "over"],
)
async def test_a_file_that_says_nothing_sensible_at_the_start_is_refused(tmp_path: Path, text: str, says: str) -> None:
    write(tmp_path / "end", text)
    with pytest.raises(BadSettings, match=says):
        await of_file(tmp_path / "end").watcher.check()


async def test_a_file_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="make its folder"):
        await of_file(tmp_path / "missing" / "end").watcher.check()
