"""`eflow configure`: the configuration of a running pool."""

import asyncio
from pathlib import Path

import pytest

from elasticflow.client.operator_decisions import configure
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.codec import READER_VERSION
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.secret_sealing import SecretKeys
from testbed.command_line import POOL, CommandLinePool


async def configurations(cli: CommandLinePool) -> int:
    rows = (await cli.eflow("events", "--json")).value
    return sum(row["type"] == "PoolConfigured" for row in rows)


async def test_a_file_configures_the_pool_once_and_no_file_changes_nothing(
    cli: CommandLinePool, tmp_path: Path
) -> None:
    before = await configurations(cli)
    file = tmp_path / "pool.toml"
    file.write_text("resize_cost_s = 3.5\n")
    for _ in range(2):
        assert (await cli.eflow("configure", str(file))).out == "pool default is configured\n"
        assert await configurations(cli) == before + 1
    assumed = (await cli.eflow("configure", "--json")).value
    assert (assumed["pool"], assumed["config"]["resize_cost_s"]) == ("default", 3.5)
    assert await configurations(cli) == before + 1


async def test_a_key_for_secrets_is_made_once(cli: CommandLinePool, tmp_path: Path) -> None:
    file = tmp_path / "new" / "secrets.key"
    first, again = [(await cli.eflow("configure", "--secrets-key", str(file), "--json")).value for _ in range(2)]
    assert first["config"]["secrets_key"] == SecretKeys.read(file).public_key
    assert again == first


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("colour = 1", "colour is not a setting of a pool"),
        (f"minimum_reader_version = {READER_VERSION + 1}", f"must be at most {READER_VERSION}, the version that"),
        ("skip_plan_up_to = 1000", "the end of the ledger"),
    ],
)
async def test_a_wrong_setting_is_named(setting: str, said: str, cli: CommandLinePool, tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text(f"{setting}\n")
    refused = await cli.eflow("configure", str(file))
    assert refused.status == 2
    assert said in refused.err


async def test_a_single_wrong_change_is_refused_as_a_file_is(cli: CommandLinePool) -> None:
    before = await configurations(cli)
    changes = {"minimum_reader_version": READER_VERSION + 1}
    with pytest.raises(BadSettings, match=f"must be at most {READER_VERSION}, the version that"):
        await configure(cli.environment()["NATS_URL"], POOL, None, SystemClock(), changes=changes)
    assert await configurations(cli) == before


async def test_the_operator_skips_an_unreadable_message_of_the_plan(cli: CommandLinePool) -> None:
    kept = (await cli.eflow("configure", "--json")).value["config"]
    sequence = await cli.bus.append(subjects.plan(POOL), b"unreadable", message_id="unreadable")
    async with asyncio.timeout(60):
        while (quoted := await cli.eflow("quote", "line.py")).status == 0:
            pass
    assert f"--skip-plan-up-to {sequence}" in quoted.out + quoted.err
    skipped = (await cli.eflow("configure", "--skip-plan-up-to", str(sequence), "--json")).value["config"]
    assert skipped == kept | {"skip_plan_up_to": sequence}
    admitted = await cli.eflow("submit", "line.py", "--deadline", "1h", "--name", "line")
    assert admitted.status == 0, admitted.err
