"""The Grafana board and the alert rules name metrics that the services have, and the how-to page lists each alert."""

import json
import re
from pathlib import Path

from elasticflow.services.monitor.service import PoolGauges
from elasticflow.shared.runtime.process.metrics import Metrics

ROOT = Path(__file__).parents[3]
ALERTS = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
BOARD = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "pool.json").read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
CHOICES = [choice["query"]["query"] for choice in BOARD["templating"]["list"]]


def names_served() -> set[str]:
    """Of all samples of a service and of the monitor."""
    metrics = Metrics("monitor", "pool")
    PoolGauges(metrics)
    families = [family for family in metrics.registry.collect() if family.name.startswith("ef_")]
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    return {family.name + suffix for family in families for suffix in suffixes[family.type]}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bef_[a-z_]+\b", text))


def test_each_query_of_the_board_and_each_alert_names_metrics_that_exist() -> None:
    served = names_served()
    assert names_in(ALERTS) <= served
    assert all(names_in(query) and names_in(query) <= served for query in (*QUERIES, *CHOICES))


def test_the_board_shows_every_pool_alone_from_the_provisioned_data_source() -> None:
    assert all('pool="$pool"' in query for query in QUERIES)
    provisioned = (ROOT / "deploy/grafana/provisioning/datasources/prometheus.yaml").read_text()
    sources = {panel["datasource"]["uid"] for panel in BOARD["panels"]}
    assert sources == set(re.findall(r"uid: (\S+)", provisioned))
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_grafana_finds_the_board_where_compose_mounts_it() -> None:
    provider = (ROOT / "deploy/grafana/provisioning/dashboards/elasticflow.yaml").read_text()
    (folder,) = re.findall(r"path: ([^\s}]+)", provider)
    compose = (ROOT / "deploy/compose.yaml").read_text()
    assert f"./grafana/dashboards:{folder}:ro" in compose
    assert "./grafana/provisioning:/etc/grafana/provisioning:ro" in compose
    assert f"GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH: {folder}/pool.json" in compose


def test_the_alert_of_a_missing_service_names_it() -> None:
    """`absent` of a comparison has no labels."""
    absent = re.findall(r'absent\(up\{service="(\w+)"\} == 1\)(.*)$', ALERTS, re.MULTILINE)
    assert len(absent) == 5
    assert all(label == f', "service", "{service}", "", "")' for service, label in absent)


def test_prometheus_loads_the_alerts_and_the_page_lists_each() -> None:
    assert "rule_files: [alerts.yml]" in (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    page = (ROOT / "docs/how-to/watch-with-grafana.md").read_text()
    names = re.findall(r"- alert: (\w+)", ALERTS)
    assert names == re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert ALERTS.count("summary:") == ALERTS.count("description:") == len(names)
