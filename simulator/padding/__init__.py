"""Padding loads on idle windows: what the hand-out policy makes of the GPU time that no job uses."""
