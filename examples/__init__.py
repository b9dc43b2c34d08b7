"""Training functions that people start from. They need no download."""
