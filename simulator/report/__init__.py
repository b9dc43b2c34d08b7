"""Several policies on several traces and cluster sizes, as one page: figures 7 to 11 of the paper, and their numbers.

`comparison` says what is run, `figures` draws it, `page` writes it down. One run is `simulator/trace_driven`.
"""
