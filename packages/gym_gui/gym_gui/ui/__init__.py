"""The desktop window. Nothing outside this package (and `gym_gui.app`, which puts it together) knows Qt."""
