"""Several policies on several traces and cluster sizes, as one page: figures 7 to 11 of the paper, and their numbers.

`run_matrix` makes the runs, `figures` draws them, `page` writes the result. One run is `simulator/trace`.
"""
