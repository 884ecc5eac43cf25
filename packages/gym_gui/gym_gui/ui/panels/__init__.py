"""Names that stay importable."""
