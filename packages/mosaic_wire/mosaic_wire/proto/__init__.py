"""trainer.proto and what `make proto` generates from it."""
