"""Hyperparameter studies: trials, plots, the best configuration."""
