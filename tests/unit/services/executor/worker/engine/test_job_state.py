"""A rolled back step restores the optimizer's settings, which train() may have changed."""

import torch

from elasticflow.services.executor.worker.engine.additional_state import optimizer_settings, restore_settings


def test_rolling_back_restores_the_optimizers_settings():
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)], lr=rate, betas=(0.9, 0.99))
    before = optimizer_settings(optimizer)
    rate.fill_(0.5)
    optimizer.param_groups[0]["weight_decay"] = 0.3
    restore_settings(optimizer, before)
    (group,) = optimizer.param_groups
    assert (float(group["lr"]), group["betas"], group["weight_decay"]) == (
        float(torch.tensor(0.1)),
        (0.9, 0.99),
        0,
    )
    assert len(group["params"]) == 1
