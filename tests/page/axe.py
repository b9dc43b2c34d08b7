"""What axe finds on a page."""

from pathlib import Path
from typing import Any

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SETTLE_MS = 400  # charts and tables are drawn after the first answer


def findings(page: Any) -> list[str]:
    """A line for each element."""
    page.evaluate(AXE)
    found = page.evaluate("rules => axe.run({runOnly: rules})", RULES)
    return [
        f"{violation['id']}: {node['html'][:120]} {node['failureSummary']}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]


def findings_in_both_themes(page: Any) -> list[str]:
    found: list[str] = []
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        page.wait_for_timeout(SETTLE_MS)
        found += [f"{theme}: {finding}" for finding in findings(page)]
    return found
