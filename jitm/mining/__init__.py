"""Offline hard negatives: the highest-scoring negatives of a whole split (AOQ: Chen et al., 2020)."""
