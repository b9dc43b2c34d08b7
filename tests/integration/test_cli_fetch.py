"""`eflow fetch` and `elasticflow.load` over a real nats-server: what a node has stored is written here."""

import asyncio
import hashlib
import importlib.util
import io
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import torch

import elasticflow
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import StoredFile, UnstoredFile
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from testbed.command_line import POOL, CommandLinePool, command_line_pool

NODE = "node-0"
WEIGHTS = {"w": torch.arange(6.0).reshape(2, 3), "tied": torch.ones(2)}
WEIGHTS["also tied"] = WEIGHTS["tied"]
FINISHED = events.JobFinished(
    job_id="j1", generation=1, iteration=100, condition="max_iterations", at_s=1.9e9, node_id=NODE
)


@pytest.fixture
async def cli(nats_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[CommandLinePool]:
    folder = tmp_path / "user"
    folder.mkdir()
    async with command_line_pool(nats_server.url, folder) as cli:
        yield cli


def saved(state: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


async def stored(cli: CommandLinePool, path: str, data: bytes) -> StoredFile:
    digest = hashlib.sha256(data).hexdigest()
    for index in range(streams.num_pieces(len(data))):
        piece = data[index * streams.ARTIFACT_PIECE_BYTES : (index + 1) * streams.ARTIFACT_PIECE_BYTES]
        name = streams.artifact_name("default", NODE, digest, index)
        await cli.bus.put_object(streams.artifact_bucket(POOL), name, piece)
    return StoredFile(path=path, num_bytes=len(data), digest=digest)


async def finish(cli: CommandLinePool) -> int:
    """The sequence of the end, after which its artifacts are due."""
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    await cli.place("j1", f"{NODE}:0")
    await cli.append(FINISHED)
    return await cli.bus.last_subject_sequence(f"ef.ledger.{POOL}.job.j1.{NODE}")


async def store(cli: CommandLinePool, due: int, *files: StoredFile, model: StoredFile | None = None) -> None:
    left = UnstoredFile(path="/data/checkpoints/j1/artifacts/link", reason="it is a link")
    event = events.ArtifactsStored(
        job_id="j1",
        due=due,
        node_id=NODE,
        iteration=100,
        model=model,
        files=files,
        unstored=(left,),
        num_unstored=3,
        at_s=cli.now_s,
    )
    await cli.append(event)


async def test_the_model_and_the_files_are_written_and_what_is_missing_is_named(cli: CommandLinePool) -> None:
    due = await finish(cli)
    large = bytes(streams.ARTIFACT_PIECE_BYTES) + b"end"
    files = [await stored(cli, "plots/large.bin", large), await stored(cli, "empty", b"")]
    await store(cli, due, *files, model=await stored(cli, "i00000000000100.pt", saved(WEIGHTS)))
    fetched = await cli.eflow("fetch", "j1")
    assert fetched.status == 0
    folder = cli.folder / "j1"
    assert torch.equal(torch.load(folder / "model.pt", weights_only=True)["w"], WEIGHTS["w"])
    assert (folder / "artifacts" / "plots" / "large.bin").read_bytes() == large
    assert (folder / "artifacts" / "empty").read_bytes() == b""
    assert "iteration 100" in fetched.out
    assert "/data/checkpoints/j1/artifacts/link: it is a link" in fetched.err
    assert "2 more files" in fetched.err
    (job,) = (await cli.eflow("jobs", "--all", "--json")).value
    assert (job["model_iteration"], job["artifact_bytes"]) == (
        100,
        sum(f.num_bytes for f in files) + len(saved(WEIGHTS)),
    )


async def test_a_program_loads_the_model(cli: CommandLinePool) -> None:
    due = await finish(cli)
    await store(cli, due, model=await stored(cli, "i00000000000100.pt", saved(WEIGHTS)))
    model = elasticflow.load("j1", nats_url=cli.url, pool=POOL)
    assert torch.equal(model["w"], WEIGHTS["w"])


async def test_a_model_that_would_run_code_is_not_loaded(cli: CommandLinePool) -> None:
    due = await finish(cli)
    await store(cli, due, model=await stored(cli, "i00000000000100.pt", saved({"w": pytest.raises})))
    with pytest.raises(Exception, match="Weights only load failed"):
        elasticflow.load("j1", nats_url=cli.url, pool=POOL)


async def test_safetensors_need_their_extra_and_hold_shared_weights(cli: CommandLinePool) -> None:
    due = await finish(cli)
    await store(cli, due, model=await stored(cli, "i00000000000100.pt", saved(WEIGHTS)))
    fetched = await cli.eflow("fetch", "j1", "--as", "safetensors", "--to", "here")
    if importlib.util.find_spec("safetensors") is None:
        assert fetched.status == 2
        assert "pip install --editable '.[safetensors]'" in fetched.err
        return
    from safetensors.torch import load_file  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    model = load_file(cli.folder / "here" / "model.safetensors")
    assert {name: value.tolist() for name, value in model.items()} == {n: v.tolist() for n, v in WEIGHTS.items()}
    assert [path.name for path in (cli.folder / "here").iterdir()] == ["model.safetensors"]


async def test_files_that_are_gone_damaged_or_not_stored_yet_are_explained(cli: CommandLinePool) -> None:
    due = await finish(cli)
    waiting = await cli.eflow("fetch", "j1", "--timeout", "1s")
    assert waiting.status == 2
    assert "node node-0 has not stored the files of 'j1' within 1 s" in waiting.err
    await store(cli, due, StoredFile(path="gone", num_bytes=5, digest="a" * 64))
    gone = await cli.eflow("fetch", "j1")
    assert gone.status == 1
    assert "gone of job 'j1' is not stored any more" in gone.err
    assert not list((cli.folder / "j1").rglob("*gone*"))
    unknown = await cli.eflow("fetch", "j2")
    assert unknown.status == 1
    assert "unknown job 'j2'" in unknown.err


async def test_a_job_that_ends_instead_of_writing_the_checkpoint_is_fetched(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    await cli.place("j1", f"{NODE}:0")
    fetching = asyncio.create_task(cli.beside("fetch", "j1"))
    async with asyncio.timeout(60.0), aclosing(cli.bus.follow(POOL, after_sequence=0)) as batches:
        async for batch in batches:
            if any(b"CheckpointRequested" in record.data for record in batch):
                break
    await cli.append(FINISHED)
    due = await cli.bus.last_subject_sequence(f"ef.ledger.{POOL}.job.j1.{NODE}")
    await store(cli, due, await stored(cli, "file", b"x"))
    fetched = await fetching
    assert fetched.status == 0
    assert "model  none: that of iteration 100 is not stored, on node node-0" in fetched.out
    assert (cli.folder / "j1" / "artifacts" / "file").read_bytes() == b"x"


async def test_a_link_in_the_folder_leads_nowhere(cli: CommandLinePool) -> None:
    due = await finish(cli)
    await store(cli, due, await stored(cli, "sub/file", b"x"))
    (cli.folder / "j1" / "artifacts").mkdir(parents=True)
    outside = cli.folder / "outside"
    outside.mkdir()
    (cli.folder / "j1" / "artifacts" / "sub").symlink_to(outside)
    refused = await cli.eflow("fetch", "j1")
    assert refused.status == 2
    assert "leads out of" in refused.err
    assert list(outside.iterdir()) == []


async def test_the_last_lines_of_a_failed_worker_are_explained(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    await cli.place("j1", f"{NODE}:0")
    failed = events.JobFailed(
        job_id="j1", generation=1, error="died", traceback="not shown", last_lines="one\ntwo", at_s=cli.now_s
    )
    await cli.append(failed)
    explained = await cli.eflow("explain", "j1")
    assert explained.out.splitlines()[-2:] == ["    | one", "    | two"]
    assert "  | two" in (await cli.eflow("logs", "j1")).out
    (job,) = (await cli.eflow("jobs", "--all", "--json")).value
    assert job["last_lines"] == "one\ntwo"
