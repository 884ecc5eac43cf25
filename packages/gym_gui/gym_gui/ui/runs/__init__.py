"""The list of runs: rows, filter, groups, painting, and the actions on them."""
