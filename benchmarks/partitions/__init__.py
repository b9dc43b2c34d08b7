"""Network partitions between three NATS servers, an executor and a monitor: do two generations ever train at once?

`python -m benchmarks.partitions` runs seeds in network namespaces of their own, and writes the results.
"""
