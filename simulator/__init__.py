"""The second caller of the services' policies: a recorded ledger replayed, and whole pools on a virtual clock.

There are two loops, both in `virtual_time.py`: an event loop for the real hosts (`pipeline`), and a heap of callbacks
for policies without processes (`trace`, the counterfactual of `replay`, the hand-outs of `padding`).
"""
