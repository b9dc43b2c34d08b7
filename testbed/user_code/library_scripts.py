"""Scripts that train with a library's own loop: LIBRARY [virtual nodes] [settings of the library as JSON].

Run by workers; and outside a job with an order of samples (`in_order`), to compare the library's own training. While a
file `slow_down` exists, each step takes longer than the last, so that no job ends during the changes of a test.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from elasticflow.sdk.script import running_worker

SLOW_DOWN_S = 0.005  # times the square of the steps done
NUM_SAMPLES, BATCH_SIZE, LAST = 50, 21, 31


class Points(Dataset[dict[str, torch.Tensor]]):
    """Noise in eight dimensions, with a target that follows from it. samples: their order."""

    def __init__(self, samples: Sequence[int] = range(NUM_SAMPLES)) -> None:
        self.points = torch.randn(NUM_SAMPLES, 8, generator=torch.Generator().manual_seed(5))
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        point = self.points[self.samples[index]]
        return {"points": point, "labels": point.sum().sin().unsqueeze(0)}


class Stream(IterableDataset[dict[str, torch.Tensor]]):
    """The same without a length."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        points = Points()
        return (points[index] for index in torch.randperm(NUM_SAMPLES).tolist())


class Model(nn.Module):
    """A model with dropout and batch norm, of the form that a Trainer expects."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1)
        )

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if Path("slow_down").exists():
            time.sleep(SLOW_DOWN_S * int(self.layers[1].num_batches_tracked) ** 2)
        made = self.layers(points)
        return {"loss": nn.functional.mse_loss(made, labels), "logits": made}


def is_alone() -> bool:
    """Outside a job."""
    return running_worker() is None


def loader_of(data: Any, virtual_nodes: int) -> DataLoader[Any]:
    """One virtual node is compared with the library alone, in the order of the data."""
    is_shuffled = not (virtual_nodes == 1 or is_alone())
    return DataLoader(data, batch_size=BATCH_SIZE, shuffle=None if isinstance(data, IterableDataset) else is_shuffled)


def with_transformers(model: nn.Module, data: Any, virtual_nodes: int, **settings: Any) -> None:
    from transformers import Trainer, TrainingArguments

    from elasticflow.adapters.transformers import elastic_trainer

    defaults = {"max_steps": LAST, "per_device_train_batch_size": BATCH_SIZE}
    args = TrainingArguments(
        output_dir="trained",
        train_sampling_strategy="sequential" if virtual_nodes == 1 or is_alone() else "random",
        learning_rate=0.01,
        max_grad_norm=0.5,
        disable_tqdm=True,
        use_cpu=True,
        **defaults | settings,
    )
    trainer = Trainer(model=model, args=args, train_dataset=data)
    trainer = elastic_trainer(trainer, virtual_nodes=virtual_nodes)
    trainer.train()
    print(f"trained {trainer.state.global_step} steps, rate {trainer.lr_scheduler.get_last_lr()[0]:.6f}")


def with_peft(model: Model, data: Any, virtual_nodes: int, **settings: Any) -> None:
    """Train with the Trainer of transformers. All but the adapters is frozen."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=4, lora_dropout=0.1, target_modules=["layers.0", "layers.4"])
    with_transformers(get_peft_model(model, lora), data, virtual_nodes, label_names=["labels"], **settings)


def with_accelerate(model: Model, data: Any, virtual_nodes: int, t_max: int = 0, **settings: Any) -> None:
    from accelerate import Accelerator

    from elasticflow.adapters.accelerate import elastic

    accelerator = Accelerator(cpu=True, **settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    if t_max:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, t_max)
    loader = loader_of(data, virtual_nodes)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    loader = elastic(accelerator, loader, model, optimizer, schedule, virtual_nodes=virtual_nodes)
    num_samples = NUM_SAMPLES if isinstance(data, IterableDataset) else len(data)
    for _ in loader.epochs(LAST * BATCH_SIZE // num_samples):
        for batch in loader:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward(model(**batch)["loss"])
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
    print(f"trained {loader.iteration} steps, rate {schedule.get_last_lr()[0]:.6f}")


def with_lightning(
    model: Model, data: Any, virtual_nodes: int, interval: str = "epoch", mlflow: str = "", **settings: Any
) -> None:
    """interval: "one cycle" for a schedule of as many steps as the trainer estimates. mlflow: address of a server."""
    import pytorch_lightning

    from elasticflow.adapters.lightning import elastic_trainer

    class Module(pytorch_lightning.LightningModule):
        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
            loss = self.made(**batch)["loss"]
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
            self.log("validated", self.made(**batch)["loss"])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            if interval == "one cycle":
                steps = self.trainer.estimated_stepping_batches
                schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
                print(f"{self.trainer.num_training_batches} batches an epoch, {steps} steps")
            every = "epoch" if interval == "epoch" else "step"
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": every}}

    if mlflow:
        from pytorch_lightning.loggers import MLFlowLogger

        settings["logger"] = MLFlowLogger(experiment_name="digits", tracking_uri=mlflow)
    defaults = {"max_steps": LAST, "accelerator": "cpu", "gradient_clip_val": 0.5, "enable_progress_bar": False}
    trainer = pytorch_lightning.Trainer(**defaults | settings)
    trainer = elastic_trainer(trainer, virtual_nodes=virtual_nodes)
    module = Module()
    module.made = model
    trainer.fit(module, loader_of(data, virtual_nodes), DataLoader(Points(), batch_size=NUM_SAMPLES))
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    print(f"trained {trainer.global_step} steps, rate {rate:.6f}")


LIBRARIES = {
    "transformers": with_transformers,
    "peft": with_peft,
    "accelerate": with_accelerate,
    "lightning": with_lightning,
}


def in_order(library: str, samples: Sequence[int], **settings: Any) -> dict[str, torch.Tensor]:
    """What the library makes of one epoch with them, by itself, without dropout, on one thread as a worker on a CPU
    slot."""
    torch.set_num_threads(1)
    model = Model(dropout=0.0)
    LIBRARIES[library](model, Points(samples), 0, **settings)
    return model.state_dict()


if __name__ == "__main__":
    library, virtual_nodes, settings = sys.argv[1:] + ["0", "{}"][len(sys.argv) - 2 :]
    trained, more = Model(dropout=0.0 if virtual_nodes == "1" else 0.1), json.loads(settings)
    made = Stream() if more.pop("is_stream", False) else Points()
    LIBRARIES[library](trained, made, int(virtual_nodes), **more)
