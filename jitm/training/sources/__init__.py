"""Parts of the source of a training step, one file each; see `jitm.training.source`.

Candidates of each query, which `candidates.source` names: in_batch, in_chunks, shortlist, sampled, perturbed, queue.
Additions: mined, relevance and labels give inputs to losses of rankings; masked and generated give further rankings and
losses of words; predicted gives the losses of words that the matcher itself predicts. An addition with a section has
  SECTION, the section, and SWITCH, the key of it that must be set,
  DECLARED, the `Section`,
  CONDITIONS, for combining it with others and for what it gives,
  add(source, made, context), which returns the source with it, where `made` is the section, bound.
"""
