"""Tensors in a flat buffer: on aligned places, without overlap, in segments of equal parts for all workers."""

import pytest
import torch

from elasticflow.services.executor.worker.engine import tree_reduce
from elasticflow.services.executor.worker.engine.tree_reduce import FlatLayout, part

ALIGNMENT = 128  # elements
SHAPES = [(300,), (7, 50), (), (0,), (1000,), (128,)]


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.int64], ids=str)
def like(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    monkeypatch.setattr(tree_reduce, "_SEGMENT_BYTES", 2_000)
    return [torch.zeros(shape, dtype=request.param) for shape in SHAPES]


@pytest.mark.parametrize("num_parts", [1, 2, 3, 8])
def test_tensors_begin_on_aligned_places_and_do_not_overlap(like: list[torch.Tensor], num_parts: int) -> None:
    layout = FlatLayout(like, num_parts)
    flat = torch.zeros(layout.num_elements, dtype=like[0].dtype)
    views = layout.views(flat)
    assert [view.shape for view in views] == [tensor.shape for tensor in like]
    assert all(view.storage_offset() % ALIGNMENT == 0 for view in views if view.numel())
    for view in views:
        view.add_(1)
    assert flat.max() == 1
    assert flat.sum() == sum(tensor.numel() for tensor in like)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 8])
def test_segments_cover_the_buffer_with_equal_aligned_parts(like: list[torch.Tensor], num_parts: int) -> None:
    layout = FlatLayout(like, num_parts)
    assert len(layout.segments) > 1 or num_parts == 8
    assert [i for segment in layout.segments for i in range(segment.start, segment.stop)] == list(
        range(layout.num_elements)
    )
    for segment in layout.segments:
        parts = [part(segment, index, num_parts) for index in range(num_parts)]
        assert len({each.stop - each.start for each in parts}) == 1
        assert all(each.start % ALIGNMENT == 0 for each in parts)
        assert [parts[0].start, *[each.stop for each in parts]] == [*[each.start for each in parts], segment.stop]


def test_the_last_tensor_lies_first_and_a_segment_knows_its_tensors(like: list[torch.Tensor]) -> None:
    layout = FlatLayout(like, 2)
    views = layout.views(torch.zeros(layout.num_elements, dtype=like[0].dtype))
    offsets = [view.storage_offset() for view in views]
    assert offsets == sorted(offsets, reverse=True)
    for position, view in enumerate(views):
        if view.numel():
            ends = (view.storage_offset(), view.storage_offset() + view.numel() - 1)
            first, last = (next(k for k, s in enumerate(layout.segments) if s.start <= end < s.stop) for end in ends)
            assert layout.segments_of(position) == range(first, last + 1)
