"""One training script as `torchrun` starts it, and as an elastic job: docs/how-to/train-existing-scripts.md."""
