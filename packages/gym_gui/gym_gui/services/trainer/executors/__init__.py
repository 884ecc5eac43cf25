"""Where workers run: `contract` says what an executor does, `local` and `slurm` do it."""
