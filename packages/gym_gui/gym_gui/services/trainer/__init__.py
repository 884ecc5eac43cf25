"""The trainer daemon: owns runs from submission to their one honest end."""
