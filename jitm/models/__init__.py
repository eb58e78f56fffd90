"""Models: each module holds one or a few Matchers."""
