"""The engine compared with its peers: resizes, losses of a worker, and the cost of a step."""
