"""Accelerate: scripts with their own loop, whose objects `Accelerator.prepare` has wrapped."""

from __future__ import annotations

from typing import Any

from elasticflow.adapters.training_libraries import ONE_PROCESS, SCALE, SHARDED, Rule, refuse, replace_accumulation
from elasticflow.sdk.script import ElasticLoader, running_worker
from elasticflow.sdk.script import elastic as elastic_script
from elasticflow.shared.training_interface import OnStep


def elastic(
    accelerator: Any,
    loader: Any,
    model: Any,
    optimizer: Any,
    *further: Any,
    virtual_nodes: int = 0,
    on_step: OnStep | None = None,
) -> ElasticLoader:
    """Do what `elasticflow.elastic` does, for prepared objects. Call it after `accelerator.prepare`.

        model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
        loader = elastic(accelerator, loader, model, optimizer, schedule)
        for epoch in loader.epochs(10):
            for batch in loader: ...

    The job's global batch replaces gradient accumulation. Raises Unsupported for fp16, and for models that Accelerate
    shards or distributes.
    """
    if (worker := running_worker()) is not None:
        _refuse_unsupported(accelerator)
        replace_accumulation(accelerator, "gradient_accumulation_steps", worker.global_batch_size)
        further = tuple(getattr(each, "scheduler", each) for each in further)
    optimizer = getattr(optimizer, "optimizer", optimizer)
    return elastic_script(loader, model, optimizer, *further, virtual_nodes=virtual_nodes, on_step=on_step)


def _refuse_unsupported(accelerator: Any) -> None:
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    refuse(
        Rule(accelerator.scaler is not None, 'mixed_precision="fp16"', SCALE, 'set mixed_precision="bf16"'),
        Rule(
            bool(accelerator.log_with),
            "log_with",
            "every worker would report",
            "remove it, and pass on_step to elastic(), which gets the metrics of the job",
        ),
        Rule(accelerator.num_processes > 1, f"{accelerator.num_processes} processes", ONE_PROCESS, "start one"),
        Rule(
            kind in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA", "TP"),
            kind,
            "it distributes the model by itself",
            SHARDED,
        ),
    )
