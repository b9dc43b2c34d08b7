"""`make demo`: two nodes of four CPU slots, five services, real jobs of three kinds, and their results."""
