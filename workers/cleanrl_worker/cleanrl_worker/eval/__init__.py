"""Playing a policy: evaluation over many episodes, and step by step with an interactive client."""
