"""Defects, seeded on purpose: each is a patch of a few lines, and a fast test must catch it."""
