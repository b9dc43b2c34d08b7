"""Claims of papers, as data, and runs that check them."""
