"""Training: objective, models that train together, step, loop, and their construction from a config."""
