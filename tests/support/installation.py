"""`elasticflow` as users install it: built as wheel and sdist, and laid into a folder of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What a build reads; all else in a checkout stays out.
_SOURCES = (
    "elasticflow",
    "shared",
    "services",
    "simulator",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "pyproject.toml",
    "setup.py",
)


def copy_of_checkout(folder: Path) -> Path:
    """The sources, so that a build writes nothing into the checkout and finds nothing that an older one left."""
    for name in _SOURCES:
        source, copy = ROOT / name, folder / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, copy, symlinks=True, ignore=ignored)
        elif source.is_file():
            shutil.copy(source, copy)
    return folder


def python(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    """Its output, without what this process has set; the process has to succeed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=kept | {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def build(checkout: Path, folder: Path) -> tuple[Path, Path]:
    """sdist, and the wheel that is built from that."""
    python("-m", "build", "--no-isolation", "--outdir", folder, cwd=checkout)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def install(wheel: Path, site: Path) -> Path:
    """The wheel without its dependencies, which this environment has; `PYTHONPATH=site` finds it."""
    python(
        "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel, cwd=site.parent
    )
    return site
