"""One presenter for each kind of worker."""
