"""What a simulation is given: jobs of a trace or of a generator, how fast they train, what a resize costs them."""
