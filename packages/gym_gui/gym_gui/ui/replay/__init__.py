"""What the Replay tab knows without a widget: which videos a run has, how they are decoded, what a step looks like."""
