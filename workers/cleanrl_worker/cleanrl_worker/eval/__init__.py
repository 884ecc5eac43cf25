"""Playing a policy: evaluation over many episodes, and step by step with somebody at the other end."""
