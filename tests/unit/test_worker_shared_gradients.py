"""One call after another finds the same gradient of the global batch."""

import torch

from services.executor.worker.shared_gradients import SharedGradients


def test_what_a_call_clips_in_place_the_next_one_finds_whole() -> None:
    parameters = [torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)]
    shared = SharedGradients()
    shared.share(parameters, [torch.tensor([3.0, 4.0]), None], before=[None, None], num_calls=2)
    for _ in range(2):
        shared.restore()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        assert norm.item() == 5.0
    assert parameters[0].grad is not None
    assert parameters[0].grad.norm().item() < 1.01
    assert parameters[1].grad is None


def test_gradients_of_before_are_added_and_kept_where_nothing_came() -> None:
    parameters = [torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)]
    shared = SharedGradients()
    before = [torch.tensor([10.0]), torch.tensor([20.0])]
    shared.share(parameters, [torch.tensor([1.0]), None], before=before, num_calls=1)
    shared.restore()
    assert [parameter.grad.item() for parameter in parameters if parameter.grad is not None] == [11.0, 20.0]


def test_forgotten_gradients_are_not_brought_back() -> None:
    parameter = torch.zeros(1, requires_grad=True)
    shared = SharedGradients()
    shared.share([parameter], [torch.tensor([1.0])], before=[None], num_calls=2)
    shared.forget()
    parameter.grad = torch.tensor([7.0])
    shared.restore()
    assert parameter.grad.item() == 7.0
