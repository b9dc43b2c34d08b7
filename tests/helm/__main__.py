"""Writes the manifests of deploy/kubernetes from the chart."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.helm.chart import MISSING, PLAIN, ROOT, Chart, find_helm, plain_text

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        if (helm := find_helm(Path(folder))) is None:
            sys.exit(MISSING)
        chart = Chart(helm, Path(folder))
        for name in PLAIN:
            (ROOT / "deploy/kubernetes" / name).write_text(plain_text(chart, name))
