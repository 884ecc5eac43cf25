"""Forms made from what a worker says of its fields."""
