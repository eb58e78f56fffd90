"""The kinds of perturbed captions, and the limits of their making; the help of commands reads them without jax."""

SWAP = 'swap'  # the kind that `scenes` contains
BY_RULES = ('noun', 'number', 'relation')
GENERATED = 'generated'
RETRIEVED = {'in_batch': 128, 'retrieved': None}  # the hardest caption of another image -> pairs in a batch, or all
KINDS = (SWAP, GENERATED, *RETRIEVED, *BY_RULES)
MAX_PER_CAPTION = 400  # perturbed captions kept for one caption, as published
MIN_COUNT = 200  # occurrences of a noun in the captions, as published
