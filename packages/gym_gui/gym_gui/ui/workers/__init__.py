"""Workers, as the window knows them."""
