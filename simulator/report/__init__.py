"""Several policies on several traces and cluster sizes, as one page: figures 7 to 11 of the paper, and their numbers.

`figures` makes the runs and draws them, `page` writes the result. One run is `simulator/trace`.
"""
