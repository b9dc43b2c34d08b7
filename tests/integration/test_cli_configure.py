"""`eflow configure`: the configuration of a running pool."""

from pathlib import Path

from tests.support.command_line import CommandLinePool


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


async def test_a_wrong_setting_is_named(cli: CommandLinePool, tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text("colour = 1\n")
    refused = await cli.eflow("configure", str(file))
    assert refused.status == 2
    assert "colour is not a setting of a pool" in refused.err
