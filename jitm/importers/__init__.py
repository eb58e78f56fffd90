"""Published PyTorch checkpoints as parameters of our models."""
