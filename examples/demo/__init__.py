"""`make demo`: two nodes of four CPU slots, four services, real jobs of three kinds, and their results."""
