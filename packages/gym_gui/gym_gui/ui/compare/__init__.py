"""The Compare page: several runs side by side."""
