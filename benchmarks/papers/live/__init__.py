"""Measurements on CPU slots that stand beside figures of the papers: analogues, never reproductions."""
