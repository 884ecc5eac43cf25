"""The Replay tab: videos and recorded episodes of a run."""
