"""Training functions to start from. They need no download."""
