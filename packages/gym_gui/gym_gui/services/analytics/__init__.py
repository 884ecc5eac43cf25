"""What curves of runs say: figures over seeds, comparisons with their uncertainty, baselines. No Qt, no learning."""
