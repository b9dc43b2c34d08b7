"""Trains a GPT that FSDP2 shards over the GPUs of a replica, with checkpoints that any number of replicas can read.

No GPU holds the whole model, its gradients or the optimizer's state. Started by torchrun, where all GPUs are one
replica, or by the pool:

    eflow submit examples/gpt/sharded.py --torchrun --gpus-per-replica 2 --batch 32 --iterations 300 --deadline 10m
"""

# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its checkpoints, but does not export them by the letter)

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as distributed_checkpoint
from model import Gpt, GptConfig, batch_of, text
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

SNAPSHOTS = Path("snapshots")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--save-every", type=int, default=25)
    parser.add_argument("--width", type=int, default=GptConfig.width)
    args = parser.parse_args()

    dist.init_process_group()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    rank, num_workers = dist.get_rank(), dist.get_world_size()
    config = GptConfig(width=args.width)
    with torch.device("meta"):  # no process ever holds the whole model
        model = Gpt(config)
    # the pool gives whole replicas: these ranks in a row are on one node, and gradients are summed over the replicas
    per_replica = int(os.environ.get("EF_GPUS_PER_REPLICA", num_workers))
    shape = (num_workers // per_replica, per_replica)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replica", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=device)
    initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    first_step = resume(model, optimizer)
    if rank == 0:
        held = sum(each.to_local().numel() for each in model.parameters() if isinstance(each, DTensor))
        replicas = f"{shape[0]} replicas of {per_replica} GPUs"
        print(f"begins at step {first_step} on {replicas}, each GPU with about {held:,} parameters", flush=True)
    data = text()
    for step in range(first_step, args.steps):
        mine = batch_of(data, step, args.batch, config.context)[rank::num_workers].to(device)
        loss = model.loss(mine)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % args.save_every == 0:
            save(model, optimizer, step + 1)
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step + 1}: loss {mean.item() / num_workers:.3f}", flush=True)
    dist.destroy_process_group()


@torch.no_grad()
def initialize(model: nn.Module) -> None:
    """Random weights, the same whatever the number of GPUs: each process draws one whole parameter after another, and
    keeps its shard."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        whole = torch.ones(parameter.shape)
        if parameter.dim() > 1:
            whole.normal_(std=0.02, generator=generator)
        if isinstance(parameter, DTensor):
            mesh = parameter.device_mesh
            parameter.copy_(
                distribute_tensor(whole.to(mesh.device_type), mesh, parameter.placements, src_data_rank=None)
            )


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Each process writes its part. The folder's metadata comes last, and makes it complete."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer}
    distributed_checkpoint.save(state, checkpoint_id=SNAPSHOTS / f"{step:08d}")


def resume(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest complete snapshot, if there is one. Returns the steps that it has."""
    complete = sorted(each.parent for each in SNAPSHOTS.glob("*/.metadata"))
    if not complete:
        return 0
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer}
    distributed_checkpoint.load(state, checkpoint_id=complete[-1])
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(complete[-1].name)


if __name__ == "__main__":
    main()
