"""Studies of Optuna, opened read-only and without Optuna: SQLite files of every version, and journals."""
