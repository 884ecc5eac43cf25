"""What the Management panel knows without a widget: disk use and what may go, requirement sets, settings."""
