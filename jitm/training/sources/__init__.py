"""Parts of the source of a training step, one file each; see `jitm.training.source`.

Candidates of each query, which `candidates.source` names: in_batch, in_chunks, shortlist, sampled, perturbed, queue.
Additions: mined, relevance and labels give inputs to losses of rankings; masked and generated give further rankings and
losses of words; predicted gives the losses of words that the matcher itself predicts. An addition with a section has
  SECTION, the config key of its section, and SWITCH, the dotted key that turns it on,
  DECLARED, the `Section` that declares it,
  CONDITIONS, for combining it with others and for what it gives,
  add(source, bound, context), which returns the source with the addition, where `bound` is the section, bound.
"""
