"""Word-level tasks (Fan et al., 2022): perturbed captions, mismatched words and their corrections."""
