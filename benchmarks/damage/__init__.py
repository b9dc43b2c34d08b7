"""What one changed bit of a pool's data leads to: `python -m benchmarks.damage`.

recorded_pool.py   makes a pool with every kind of stored data, and copies it
questions.py       what clients and services ask a pool, and whether an answer is right
__main__.py        the sweep
"""
