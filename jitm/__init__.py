"""jitm: image-text matching in JAX/Flax."""
