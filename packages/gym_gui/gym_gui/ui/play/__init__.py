"""Playing: what the Human-Only mode and the watched policies are made of, apart from widgets."""
