"""Each command that takes a name offers the close ones if nothing has that name."""

import pytest

from testbed.command_line import CommandLinePool
from tests.integration.test_cli_loads import opened

JOB, LOAD = "nightly-resnet", "protein-fold"
ENDED = "weekly-gpt"
BY_NAME = {
    "cancel": ("cancel", "{}"),
    "amend": ("amend", "{}", "--deadline", "2h"),
    "checkpoint": ("checkpoint", "{}"),
    "explain": ("explain", "{}"),
    "explain --traceback": ("explain", "{}", "--traceback"),
    "logs": ("logs", "{}"),
    "fetch": ("fetch", "{}"),
    "profile": ("profile", "{}"),
    "scale-out": ("scale-out", "{}", "2"),
    "scale-out without a number": ("scale-out", "{}"),
    "scale-out --release": ("scale-out", "{}", "--release"),
    "scale-in": ("scale-in", "{}", "2"),
    "scale-in without a number": ("scale-in", "{}"),
    "scale-in --gpu": ("scale-in", "{}", "--gpu", "node-0:1"),
    "scale-in --release": ("scale-in", "{}", "--release"),
}


async def with_names(cli: CommandLinePool) -> None:
    for name in (JOB, ENDED):
        submitted = await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", name)
        assert submitted.status == 0, submitted.err
    assert (await cli.eflow("cancel", ENDED)).status == 0


async def test_each_command_about_a_job_offers_close_names(cli: CommandLinePool) -> None:
    await with_names(cli)
    for command, words in BY_NAME.items():
        for mistyped, meant in (("nightly-resnt", JOB), ("weekly-gtp", ENDED)):
            ran = await cli.eflow(*(word.format(mistyped) for word in words))
            assert ran.status != 0, command
            said = " ".join((ran.out + ran.err).replace("│", " ").split())
            assert f"did you mean {meant}?" in said, (command, said)
            assert "eflow jobs --all" in said, (command, said)
        ran = await cli.eflow(*(word.format("zzzzz") for word in words))
        assert "did you mean" not in ran.out + ran.err, command


async def test_another_tenants_jobs_are_not_offered(cli: CommandLinePool) -> None:
    await with_names(cli)
    for words in (("cancel", "nightly-resnt"), ("amend", "nightly-resnt", "--deadline", "2h")):
        ran = await cli.eflow(*words, "--tenant", "another")
        assert "tenant another has no such job; `eflow jobs --all`" in ran.out


async def test_a_command_about_a_job_of_another_tenant_names_its_owner(cli: CommandLinePool) -> None:
    await with_names(cli)
    told = "tenant another has no such job; it is a job of tenant default: add --tenant default"
    for command in (name for name in BY_NAME if name.startswith(("cancel", "amend", "checkpoint", "scale"))):
        for job in (JOB, ENDED):
            ran = await cli.eflow(*(word.format(job) for word in BY_NAME[command]), "--tenant", "another")
            assert ran.status != 0, command
            assert told in " ".join((ran.out + ran.err).split()), command
    as_json = await cli.eflow("cancel", JOB, "--tenant", "another", "--json")
    assert as_json.value["explanation"] == told
    await opened(cli, LOAD)
    ran = await cli.eflow("cancel", LOAD, "--tenant", "another")
    assert "has no such load; it is a load of tenant default: add --tenant default" in ran.out


async def test_close_loads_nodes_sweeps_metrics_and_quotes_are_offered(cli: CommandLinePool) -> None:
    await opened(cli, LOAD)
    swept = await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "s1", "--sweep", "lr=0.1,0.2")
    assert swept.status == 0, swept.err
    for words, meant in (
        (("cancel", "protein-fodl"), LOAD),
        (("results", "protein-fodl"), LOAD),
        (("explain", "protein-fodl"), LOAD),
        (("drain", "node-00"), "node-0"),
        (("jobs", "--sweep", "s11"), "s1"),
    ):
        ran = await cli.eflow(*words)
        said = " ".join((ran.out + ran.err).replace("│", " ").split())
        assert ran.status != 0, words
        assert meant in said.partition("did you mean" if words[0] != "cancel" else "there is a padding load")[2], said
    reserved = (await cli.eflow("quote", "line.py", "--reserve", "60s", "--json")).value["job_id"]
    ran = await cli.eflow("submit", "line.py", "--quote", f"{reserved}0")
    assert f"did you mean {reserved}?" in ran.err


@pytest.mark.parametrize("name", ["scale-out", "scale-in"])
async def test_numbers_that_no_job_gets_say_which_are_possible(cli: CommandLinePool, name: str) -> None:
    await with_names(cli)
    scaled = await cli.eflow(name, JOB, "3")
    size, word = (4, "least") if name == "scale-out" else (2, "most")
    assert f"at {word} {size} GPUs (3 GPUs mean {size}: jobs get 1, 2, 4, 8, ... GPUs)" in scaled.out
    if name == "scale-out":
        refused = await cli.eflow(name, JOB, "30")
        assert "30 GPUs mean 32: jobs get 1, 2, 4, 8, ... GPUs; it runs on 1, 2, 4 or 8 GPUs here" in refused.out
        assert refused.out.splitlines()[-1] == f"  take it  eflow scale-out {JOB} 8"


async def test_gpus_that_no_job_gets_are_refused_with_the_nearest(cli: CommandLinePool) -> None:
    for asked, words in (("3", "3 is none of the numbers"), ("5..7", "5..7 is none of the numbers")):
        ran = await cli.eflow("submit", "line.py", "--deadline", "300s", "--gpus", asked)
        assert ran.status == 2
        said = " ".join(ran.err.replace("│", " ").split())
        nearest = "2 or 4" if asked == "3" else "4 or 8"
        assert f"{words} of GPUs that a job gets, 1, 2, 4, 8, ...: choose {nearest}" in said
