"""Quality and speed of the scheduler's decisions, and its promises when nodes fail."""
