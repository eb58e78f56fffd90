"""Ways to make the pairs of a training step, one file each; see `jitm.training.source`."""
