"""The chart of each test. Without helm all are skipped, and say so."""

from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="tests of the chart need PyYAML: `make helm-test`")

from tests.helm.chart import MISSING, Chart, find_helm


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (found := find_helm(tmp_path_factory.mktemp("helm"))) is None:
        pytest.skip(MISSING)
    return found


@pytest.fixture
def chart(helm: Path, tmp_path: Path) -> Chart:
    return Chart(helm, tmp_path)
