"""What a model says of single words, and of sentences that are nearly right (TAGS-DC, section 4)."""
