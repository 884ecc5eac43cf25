"""Networks with a shared trunk, for flat observations and for grid worlds."""
