"""What became slower: a short run of the benchmarks, whose ratios to peers are compared with recorded ones.

`python -m benchmarks.regressions` also lists the pages of results whose code has changed since their measurement.
"""
