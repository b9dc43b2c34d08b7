"""A tiny language model of bytes with the Hugging Face Trainer: by itself, or as an elastic job."""

from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from elasticflow.adapters.transformers import elastic_trainer

CONTEXT = 32  # bytes


def windows() -> list[dict[str, torch.Tensor]]:
    """Consecutive parts of the help texts that ship with Python."""
    text = torch.tensor(list("\n".join(topics.values()).encode()))
    return [{"input_ids": window, "labels": window} for window in text.split(CONTEXT)[:-1]]


def main() -> None:
    torch.manual_seed(0)
    held_out, train_set = windows()[:64], windows()[64:]
    sizes = {"vocab_size": 256, "n_positions": CONTEXT, "n_embd": 32, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))
    settings = {"max_steps": 100, "per_device_train_batch_size": 32, "learning_rate": 0.01, "logging_steps": 10}
    args = TrainingArguments(output_dir="trained", **settings)
    trainer = Trainer(model=model, args=args, train_dataset=train_set)
    trainer = elastic_trainer(trainer)
    trainer.train()
    print(f"held-out loss {trainer.evaluate(held_out)['eval_loss']:.3f}")


if __name__ == "__main__":
    main()
