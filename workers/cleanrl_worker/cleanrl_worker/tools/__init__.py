"""Commands beside the worker itself."""
