"""Charts of runs: live while a run is, with other runs overlaid."""
