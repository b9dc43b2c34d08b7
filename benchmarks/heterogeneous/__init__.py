"""Jobs on GPUs of several types: `python -m benchmarks.heterogeneous`."""
