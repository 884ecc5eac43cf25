"""Analysis of curves: figures over seeds, comparisons with their uncertainty, baselines. No Qt, no learning."""
