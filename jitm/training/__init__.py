"""Training: objective, members, step, checkpoints, loop."""
