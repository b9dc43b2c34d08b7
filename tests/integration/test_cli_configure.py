"""`eflow configure`: what the policies of a pool assume, said by a command of its own."""

from pathlib import Path

from tests.support.command_line import FrontDoor


async def configurations(door: FrontDoor) -> int:
    rows = (await door.eflow("events", "--json")).value
    return sum(row["type"] == "PoolConfigured" for row in rows)


async def test_a_file_is_taken_once_and_no_file_changes_nothing(door: FrontDoor, tmp_path: Path) -> None:
    before = await configurations(door)
    file = tmp_path / "pool.toml"
    file.write_text("resize_cost_s = 3.5\n")
    for _ in range(2):
        assert (await door.eflow("configure", str(file))).out == "pool default is configured\n"
        assert await configurations(door) == before + 1
    assumed = (await door.eflow("configure", "--json")).value
    assert (assumed["pool"], assumed["config"]["resize_cost_s"]) == ("default", 3.5)
    assert await configurations(door) == before + 1


async def test_a_wrong_setting_is_named(door: FrontDoor, tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text("colour = 1\n")
    refused = await door.eflow("configure", str(file))
    assert refused.status == 2
    assert "colour is not a setting of a pool" in refused.err
