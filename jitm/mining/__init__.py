"""The most confusing negatives of a whole split, for training with offline hard negatives (AOQ, paper 000)."""
