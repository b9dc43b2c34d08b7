"""Hooks of MkDocs: generated reference pages, pages from outside docs/, and links between them."""

import os.path
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))
from generate_reference import PAGES  # noqa: E402

OUTSIDE = (
    "benchmarks/results/*.md",
    "deploy/README.md",
    "simulator/data/README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)]*)?\)")


def outside_pages() -> list[str]:
    """Pages of the site that are not in docs/, by their path in the repository."""
    return [path.relative_to(REPOSITORY).as_posix() for name in OUTSIDE for path in sorted(REPOSITORY.glob(name))]


def on_config(config: Any) -> Any:
    """List every decision record in the navigation."""
    records = [f"adr/{path.name}" for path in sorted((REPOSITORY / "docs/adr").glob("0*.md"))]
    next(section for section in config.nav if "Decision records" in section)["Decision records"] += records
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and those from outside docs/."""
    for name, generate in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=generate()))
    for path in outside_pages():
        files.append(File.generated(config, path, content=(REPOSITORY / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the site; a link to a file that is no page becomes its text."""
    outside = set(outside_pages())
    uri = page.file.src_uri
    folder = os.path.dirname(uri if uri in outside else f"docs/{uri}")

    def replace(link: re.Match[str]) -> str:
        image, text, target, anchor = link.groups()
        path = os.path.normpath(os.path.join(folder, target))
        if path in outside or path.startswith("docs/"):
            there = os.path.relpath(path.removeprefix("docs/"), os.path.dirname(uri) or ".")
            return f"{image}[{text}]({there}{anchor or ''})"
        return text

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(replace, part) for part in parts)
