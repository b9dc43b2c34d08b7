"""What the documents name exists: links, paths, commands with their options, modules, identifiers, records."""

import dataclasses
import importlib.util
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import elasticflow
from elasticflow.client.pool_endpoint import RunFile
from elasticflow.shared.messages.codec import MESSAGE_TYPES
from tests.support import training_patterns

ROOT = Path(__file__).parents[3]
RECORDS = sorted((ROOT / "docs/adr").glob("0*.md"))
HISTORY = [ROOT / "CHANGELOG.md"]  # names what no longer exists, too
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "deploy/README.md", "simulator/data/README.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks/results").glob("*.md"),
    ]
)
CODE_FOLDERS = (
    "shared",
    "services",
    "simulator",
    "elasticflow",
    "testbed",
    "tests",
    "examples",
    "benchmarks",
    "deploy",
    "docs",
)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def _reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", ROOT / "docs/generate_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


REFERENCE = _reference()
COMMANDS: dict[str, Any] = REFERENCE.commands()
GENERATED = {ROOT / f"docs/reference/{name}.md": page() for name, page in REFERENCE.PAGES.items()}


def _text(page: Path) -> str:
    return GENERATED[page] if page in GENERATED else page.read_text()


def _prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def _anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as MkDocs and code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", _prose(text), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *HISTORY], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken: list[str] = []
    for target, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)", _prose(_text(page))):
        if re.match(r"\w+:", target):
            continue
        file = (page.parent / target).resolve() if target else page
        if not (file.exists() or file in GENERATED):
            broken.append(target)
        elif anchor and anchor not in _anchors(_text(file)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


@every_page
def test_paths_exist(page: Path) -> None:
    text = _text(page)
    named = re.findall(rf"(?<![\w/<>.-])((?:{'|'.join(CODE_FOLDERS)})/[\w./*-]+\w(?:/(?=`))?)(:\w+)?", text)
    assert [path for path, image_tag in named if not image_tag and not any(ROOT.glob(path))] == []


def _commands(text: str) -> Iterator[list[str]]:
    """The words of every `eflow ...` that is shown, up to a comment or a bare `--`."""
    shown = [
        *re.findall(r"`(eflow [^`]*)`", text),
        *re.findall(r"^(?:.*\brun --rm )?(eflow .*)$", text, re.MULTILINE),
    ]
    for line in shown:
        yield re.split(r"\s(?:--|#)(?:\s|$)|\s\|\s", line)[0].split()[1:]


@every_page
def test_commands_and_their_options_exist(page: Path) -> None:
    unknown: list[str] = []
    for words in _commands(_text(page)):
        names = [word.rstrip(",.;:)") for word in words]
        if not names or names[0].startswith(("-", "...")):
            continue
        if names[0] not in COMMANDS:
            unknown.append(names[0])
            continue
        command = COMMANDS[names.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
        if names and names[0] in getattr(command, "commands", {}):
            options |= {option for parameter in command.commands[names[0]].params for option in parameter.opts}
        unknown += [f"{command.name} {name}" for name in names if name.startswith("--") and name not in options]
    assert unknown == []


def test_the_page_of_training_patterns_shows_what_is_tested() -> None:
    assert training_patterns.PAGE.read_text() == training_patterns.page() + "\n", training_patterns.__doc__


@every_page
def test_modules_that_are_run_exist(page: Path) -> None:
    named = set(re.findall(r"python -m ((?:elasticflow|examples|benchmarks)[\w.]*\w)", _text(page)))
    assert [name for name in sorted(named) if importlib.util.find_spec(name) is None] == []


def _words_of_the_code() -> set[str]:
    files = [file for folder in CODE_FOLDERS[:-1] for file in (ROOT / folder).rglob("*") if file.suffix != ".md"]
    files += [ROOT / name for name in ("pyproject.toml", "Makefile", "docs/generate_reference.py")]
    words: set[str] = set()
    for file in files:
        words.update((file.stem, file.name))
        if file.is_file() and file.suffix in {".py", ".toml", ".yaml", ".yml", ".env", ".csv", ".sh", "", ".conf"}:
            words.update(re.findall(r"\w+", file.read_text(errors="ignore")))
    return words


CODE = _words_of_the_code()
FOREIGN = {
    *(
        "GradScaler",
        "IterableDataset",
        "ResampledShards",
        "StreamingDataset",
        "Fraction",
        "RLIMIT_NICE",
        "SLURM_JOB_ID",
        "SCHED_IDLE",
        "TORCHELASTIC_",
        "LOCAL_WORLD_SIZE",
    ),
    *(
        "no_proxy",
        "TORCH_INDEX_URL",
        "PIP_INDEX_URL",
        "PIP_NO_INDEX",
        "sync_interval",
        "itp_cluster01",
        "__next__",
        "package_dir",
    ),
    *(
        "KV_EF_NODES_",
        "OBJ_EF_CODE_",
        "OBJ_EF_SNAPSHOT_",
        "OBJ_EF_ARTIFACTS_",
        "KV_EF_LOGS_",
        "KV_EF_VIEWS_",
    ),  # streams, named by NATS
    *("Greedy", "Picky"),  # classes of earlier code, in measurements of it
}


@every_page
def test_identifiers_are_names_of_the_code(page: Path) -> None:
    spans = re.findall(r"`([^`\n]+)`", _prose(_text(page)))
    words = {word for span in spans for word in re.findall(r"\b(?:[A-Z]\w*[a-z]\w*[A-Z]\w*|\w+_\w+)\b", span)}
    assert sorted(words - CODE - FOREIGN) == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_record_has_a_title_a_status_and_a_line_in_the_index(record: Path) -> None:
    text = record.read_text()
    title = re.match(r"# (\d+)\. (.+)", text)
    assert title is not None
    assert int(title[1]) == int(record.name[:4])
    status = re.search(r"\*\*Status:\*\* (accepted|proposed|superseded by \[record \d+\])", text)
    assert status is not None, "a record says that it is accepted or proposed, or which record supersedes it"
    parts = ("## Context", "## Decision", "## Consequences")
    assert [part for part in parts if part not in text] == []
    assert (
        f"| {title[1]} | [{title[2]}]({record.name}) | {status[1].partition(' by')[0]}"
        in (ROOT / "docs/adr/index.md").read_text()
    )


def test_records_that_the_code_names_exist() -> None:
    known = {record.name[:4] for record in RECORDS}
    folders = [ROOT / folder for folder in CODE_FOLDERS]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in {".py", ".md", ".yaml"}]
    cited = {
        (str(file.relative_to(ROOT)), number.zfill(4))
        for file in files
        for number in re.findall(r"(?:docs/adr/|\brecords? )(\d+)", file.read_text())
    }
    assert sorted((file, number) for file, number in cited if number not in known) == []


def test_the_generated_reference_is_complete() -> None:
    cli, sdk, messages = (GENERATED[ROOT / f"docs/reference/{name}.md"] for name in ("cli", "sdk", "messages"))
    assert [name for name in COMMANDS if f"## eflow {name}\n" not in cli] == []
    public = [name for name in elasticflow.__all__ if not name.startswith("__")]
    assert [name for name in public if not re.search(rf"#+ {name}\n|`{name}`", sdk)] == []
    assert [name for name in MESSAGE_TYPES if f"### {name}\n" not in messages] == []


def test_the_readme_fits_on_two_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_page_of_traces_writes_one_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/simulate-a-trace.md").read_text(), re.DOTALL)
    shutil.copytree(ROOT / "simulator/data/throughputs", tmp_path / "tables")
    monkeypatch.chdir(tmp_path)
    exec(program, {})  # the document's own text
    assert len(Path("jobs.csv").read_text().splitlines()) == 501


def test_the_page_of_data_draws_with_weights_and_anew_in_each_epoch() -> None:
    text = (ROOT / "docs/explanation/data.md").read_text().partition("### Weighted sampling")[2]
    names: dict[str, Any] = {"torch": torch, "Dataset": Dataset}
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], names)
    data, again = (names["Weighted"](list(range(10)), [0.0] * 8 + [1.0, 3.0]) for _ in range(2))
    drawn = list[tuple[int, ...]]()
    for epoch in range(20):
        for each in (data, again):
            each.set_epoch(epoch)
        drawn.append(tuple(data[index] for index in range(10)))
        assert drawn[-1] == tuple(again[index] for index in range(10))
    assert len(set(drawn)) > 10
    samples = [sample for epoch in drawn for sample in epoch]
    assert samples.count(9) > samples.count(8) > 0
    assert set(samples) == {8, 9}


def test_the_page_of_messages_names_the_key_of_the_server() -> None:
    text = (ROOT / "docs/how-to/publish-messages.md").read_text()
    (key,) = re.findall(r"`(\w+)` of `\.eflow/run\.json`", text)
    assert key in {field.name for field in dataclasses.fields(RunFile)}


def test_guides_count_the_services_as_the_pages_list_them() -> None:
    """Executors belong to nodes, and are counted with them."""
    guides = [ROOT / "README.md", *(ROOT / "docs/tutorial").glob("*.md"), *(ROOT / "docs/how-to").glob("*.md")]
    assert [str(page.relative_to(ROOT)) for page in guides if "five services" in page.read_text()] == []
