"""Forms that submit runs, built from the fields a worker describes."""
