"""Other schedulers as plain policies, each from its paper, to measure ours against; docs/baselines.md compares them."""
