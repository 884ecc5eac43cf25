"""The telemetry lane: every step and episode of a live worker, stored once and passed on to whoever watches."""
