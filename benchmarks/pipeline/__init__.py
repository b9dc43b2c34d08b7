"""How fast the pipeline decides: real services, real NATS with fsync, nodes that only pretend to train."""
