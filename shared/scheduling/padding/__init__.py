"""Padding loads: what many small tasks on otherwise idle GPUs yield and cost, and which load gets a GPU."""
