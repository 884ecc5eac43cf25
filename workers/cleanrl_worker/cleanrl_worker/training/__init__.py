"""What algorithms share: environments, small networks, event files, checkpoints and the run context."""
