"""Where the page reads: an exported ledger."""

import weakref

from elasticflow.web.sources import RecordedSource
from testbed.page_ledger import page_history, recorded


async def test_an_export_that_is_shown_no_more_is_given_up() -> None:
    source = RecordedSource("run", recorded(page_history()))
    await source.fold_all()
    state = (await source.past.at(10)).sequence
    assert state == 10
    gone = weakref.ref(source)
    del source
    assert gone() is None, "in a cycle, which no collection finds after `gc.freeze`"
