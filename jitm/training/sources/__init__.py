"""Parts of the source of a training step, one file each; see `jitm.training.source`.

Candidates of each query, which `candidates.source` names: in_batch, in_chunks, shortlist, sampled, perturbed, queue.
Additions to their rankings: mined, relevance, labels. Other rankings and token losses: masked, generated, predicted.
"""
