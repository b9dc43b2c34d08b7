"""The layout of each page on wide and narrow screens, and its focus by keyboard.

Boxes are compared instead of pictures: kept pictures differ between versions of Chromium and of fonts, and would have
to be so tolerant that a cut word passes.
"""

import pytest

from tests.page.axe import SETTLE_MS
from tests.page.conftest import Viewer

PAGES = ("", "job/running", "job/rejected", "job/crashed", "nodes", "quote", "replay", "events", "tenants")
# Boxes that overlap a sibling, leave the screen, or cut their text. What scrolls may be wider than its box.
PROBLEMS = """width => {
    const problems = [], name = e => `${e.tagName.toLowerCase()}.${e.className} "${e.textContent.trim().slice(0, 40)}"`;
    const isSeen = e => { const box = e.getBoundingClientRect(); return box.width > 1 && box.height > 1; };
    const scrolls = e => e.closest('.scroll, pre, .lanes, .uplot, .feed ol');
    const blocks = 'header.top, main > *, .columns > *, .tools > *, .numbers > div, .facts > div, .chart, .node, '
        + '.sliders > *';
    for (const parent of new Set([...document.querySelectorAll(blocks)].map(e => e.parentElement))) {
        const boxes = [...parent.children].filter(isSeen).map(e => [e, e.getBoundingClientRect()]);
        for (const [index, [first, a]] of boxes.entries())
            for (const [second, b] of boxes.slice(index + 1))
                if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
                    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1)
                    problems.push(`${name(first)} overlaps ${name(second)}`);
    }
    for (const each of document.querySelectorAll('header *, main *')) {
        if (!isSeen(each) || scrolls(each) || each.closest('.hidden, option')) continue;
        const box = each.getBoundingClientRect();
        if (box.right > width + 1 || box.left < -1) problems.push(`${name(each)} leaves the screen`);
        const style = getComputedStyle(each);
        const isCut = style.overflowX !== 'visible' && each.scrollWidth > each.clientWidth + 1;
        if (isCut) problems.push(`${name(each)} is cut`);
    }
    return problems;
}"""
# The elements that a keyboard must reach, as numbers in the order of the page.
MARK = """() => {
    const able = 'a[href], button, input, select, textarea, summary, [tabindex="0"]';
    const seen = [...document.querySelectorAll(able)].filter(e => !e.disabled && e.checkVisibility());
    seen.forEach((e, index) => { e.dataset.order = index; });
    return seen.map(e => e.outerHTML.slice(0, 120));
}"""
FOCUSED = """() => {
    const { dataset, tagName } = document.activeElement, style = getComputedStyle(document.activeElement);
    const hasOutline = style.outlineStyle !== 'none' && style.outlineWidth !== '0px';
    return [tagName === 'BODY' ? -1 : Number(dataset.order), hasOutline];
}"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("address", PAGES)
def test_nothing_overlaps_is_cut_or_leaves_the_screen(viewer: Viewer, address: str, width: int) -> None:
    viewer.page.set_viewport_size({"width": width, "height": 900 if width > 600 else 844})
    viewer.go(address)
    viewer.page.wait_for_timeout(SETTLE_MS)
    backgrounds: set[str] = set()
    for theme in ("light", "dark"):
        viewer.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        viewer.page.wait_for_timeout(SETTLE_MS // 2)
        assert viewer.page.evaluate(PROBLEMS, width) == [], theme
        backgrounds.add(viewer.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(backgrounds) == 2


@pytest.mark.parametrize("address", PAGES)
def test_the_tabulator_reaches_everything_in_order_and_shows_where_it_is(viewer: Viewer, address: str) -> None:
    viewer.go(address)
    viewer.page.wait_for_timeout(SETTLE_MS)
    wanted = viewer.page.evaluate(MARK)
    assert len(wanted) >= 8  # those of the header
    reached: list[int] = []
    unseen: list[str] = []
    while len(reached) <= len(wanted):
        viewer.page.keyboard.press("Tab")
        number, is_seen = viewer.page.evaluate(FOCUSED)
        if number < 0:
            break
        reached.append(number)
        if not is_seen:
            unseen.append(wanted[number])
    assert [wanted[number] for number in sorted(set(range(len(wanted))) - set(reached))] == []
    assert reached == sorted(reached)
    assert unseen == []
