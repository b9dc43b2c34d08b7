"""What the engine does beside its peers: changes of workers, losses of one, and the cost of a step."""
