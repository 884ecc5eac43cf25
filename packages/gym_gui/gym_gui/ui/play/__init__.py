"""The Play and Watch-a-policy workspaces."""
