"""The curves of runs: taken from workers, kept as a pyramid beside the event files, served in any resolution."""
