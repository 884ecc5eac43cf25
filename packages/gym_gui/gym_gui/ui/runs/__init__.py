"""The table of runs: rows and their text, filter, groups, painting, and the panel that shows them."""
