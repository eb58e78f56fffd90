"""Synthetic negative captions (Fan et al., 2022): refilled by a generator, filtered, and the hardest kept."""
