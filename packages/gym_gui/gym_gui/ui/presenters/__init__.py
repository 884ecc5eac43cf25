"""What a worker's runs look like in the window; no widgets."""
