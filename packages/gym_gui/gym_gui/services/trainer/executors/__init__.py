"""Where worker processes run; `local` is the embedded default."""
