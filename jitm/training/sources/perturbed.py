"""The pairs of the global batch with a perturbed caption of each (NegCLIP: Yuksekgonul et al., 2023)."""

from typing import Literal

import numpy as np

from jitm.data.pairs.perturbations import is_file, perturber, reads_graphs
from jitm.data.pipeline import Pipeline, Sampler, generator
from jitm.data.splits import pad_texts
from jitm.data.text.word_level import join
from jitm.devices import collectives
from jitm.errors import ArgumentError
from jitm.files import hash_file, hash_json
from jitm.training.source import Conditions, Source, concatenate
from jitm.training.sources.in_batch import SAME_IMAGE, rank_batch

STREAM = 5  # separates these random numbers from other sources' numbers
ACCEPTS = {'augmentation.drop_regions', 'offline.path', 'members.*.learn_from'}


def perturbed(same_image: Literal[*SAME_IMAGE], perturbations: tuple[str, ...]) -> Source:
    """Ranks the captions of the global batch and a perturbed caption of each pair for each image, [B, 2 B] (NegCLIP).

    A perturbed caption is a negative of all images, and never a query (Yuksekgonul et al., 2023, without their hard
    images). It is sampled again in every step, with equal probability for each kind that changes the caption.

    Args:
      same_image: See `in_batch`.
      perturbations: The kinds, see `jitm.data.pairs.perturbations.perturber`; all but 'swap' need
        `scene_graphs.source`.
    """
    if not perturbations:
        raise ArgumentError('perturbations', "is empty; give kinds, such as ('relation',)")

    def samplers(pipeline):
        graphs = pipeline.scene_graphs if reads_graphs(perturbations) else None
        kinds = [perturber(pipeline.split, graphs, kind) for kind in perturbations]
        read = [graphs, *(hash_file(kind) for kind in perturbations if is_file(kind))]
        return {'perturbed': sampler(pipeline, kinds, hash_json(read))}

    def score(matcher, images, texts, batch, seen, train):
        del seen
        perturbed_texts, is_perturbed = batch.drawn['perturbed']
        all_perturbed = collectives.all_gather(matcher.encode_text(perturbed_texts, train))
        all_texts = concatenate(collectives.all_gather(texts), all_perturbed)
        return rank_batch(matcher, images, all_texts, batch, train, same_image, is_further_negative=is_perturbed), {}

    graphs = "'candidates.perturbations' needs scene graphs: set it, such as to 'scene_graphs.rules'"
    needs = {'scene_graphs.source': graphs} if reads_graphs(perturbations) else {}
    return Source(score, samplers=samplers, conditions=Conditions(ACCEPTS, needs))


def sampler(pipeline: Pipeline, kinds: list, digest: str) -> Sampler:
    """Returns the sampler of a perturbed caption for each text of a batch.

    Args:
      pipeline: The training batches.
      kinds: The perturbations of a caption, `text -> captions`.
      digest: A hash of the inputs of the kinds.
    """
    tokens = pipeline.tokens
    limit = pipeline.max_length

    def perturb(step, text):
        """Samples the ids of a perturbed caption; None if no kind changes the caption."""
        rng = generator(pipeline.seed, step, text, stream=STREAM)
        for kind in rng.permutation(len(kinds)):
            choices = kinds[kind](text)
            if choices:
                return pipeline.vocabulary.encode(choices[rng.integers(len(choices))])
        return None

    def pick(step, rows):
        """Returns B captions, and which of them have other ids than the text, bool [B].

        A text that cannot be perturbed, or whose perturbed caption is too long, is returned itself.
        """
        captions = []
        is_changed = []
        for text in map(int, rows):
            ids_of_text = tokens.ids[tokens.starts[text] : tokens.starts[text + 1]]
            ids = perturb(step, text)
            fits = ids is not None and len(ids) <= (limit or len(ids))
            is_changed.append(fits and not np.array_equal(ids, ids_of_text))
            captions.append(ids if is_changed[-1] else ids_of_text)
        captions = join(captions)
        return (captions, np.array(is_changed, bool)), captions.lengths

    def take(picked, part):
        captions, is_changed = picked
        rows = part.cut(np.arange(len(is_changed)))
        return pad_texts(captions, rows, part.length), is_changed[rows]

    return Sampler(pick, take, {'perturbed': digest})
