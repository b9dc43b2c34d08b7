"""How good the scheduler's decisions are, how fast it takes them, and whether its promises outlive failures."""
