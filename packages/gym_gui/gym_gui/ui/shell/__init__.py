"""The main window: menu, workspaces, status bar, notifications, and how the window finds its daemon."""
