"""Data sets, text, and the batches made of them."""
