"""What a run may be asked to do, one small module per mode; nothing heavy is imported here.

Each says what is wrong with a config in its mode and what the training process is told to do.
"""
