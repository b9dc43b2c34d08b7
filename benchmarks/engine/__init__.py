"""What a training step costs: this engine in both modes beside plain PyTorch DDP, in one run."""
