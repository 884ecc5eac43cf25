"""What stands around environments: curricula."""
