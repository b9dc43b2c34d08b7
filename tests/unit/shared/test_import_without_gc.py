"""Garbage collection continues after the imports, and ignores the imported objects."""

import gc

import pytest

from elasticflow.shared.import_without_gc import without_gc


@pytest.fixture(autouse=True)
def as_before():
    yield
    gc.enable()


def test_no_garbage_is_collected_during_the_imports_nor_later_among_imported_objects():
    num_before = gc.get_freeze_count()
    with without_gc():
        assert not gc.isenabled()
        loaded = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= num_before + len(loaded)


def test_a_library_that_is_not_there_leaves_the_collector_on():
    with pytest.raises(ImportError), without_gc():
        raise ImportError("no such library")
    assert gc.isenabled()
