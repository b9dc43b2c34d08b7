"""The speed of the pipeline: real services, real NATS with fsync, and nodes that do not train."""
