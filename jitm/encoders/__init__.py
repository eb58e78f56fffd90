"""Networks that write features of photos and vectors of tokens, on which other models train."""
