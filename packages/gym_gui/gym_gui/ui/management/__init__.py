"""The Management workspace: daemon, workers, requirement sets, disk use, saved filters; and the settings dialog."""
