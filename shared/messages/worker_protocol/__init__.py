"""Messages on the private sockets of one machine: executor, fork server, workers. `frames` has the bytes."""
