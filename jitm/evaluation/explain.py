"""Retrieved images and perturbed captions with a model's word-level outputs, for JSON and figures.

The outputs are the attention between words and regions, or the mismatched words and their corrections (TAGS-DC,
figure 3).
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import chex
import jax
import numpy as np

from jitm.data.splits import LENGTH_MULTIPLE, Split, bucket, pad_texts, take_images
from jitm.data.text.word_level import join
from jitm.encoders.text_network import TextNetwork, of_run
from jitm.errors import UserError
from jitm.inference.pairs import WORD_HEADS, PairScorer
from jitm.inference.scoring import DEFAULT_OPTIONS, ScoringOptions, resolve_options
from jitm.metrics import Retrieved, evenly_spaced, retrieve
from jitm.models.joint import has_heads
from jitm.models.tiled import CrossAttentionMatcher
from jitm.runs.run import Run
from jitm.types import Images, Precision, Texts

DECIMALS = 6  # numbers in JSON are rounded to these
TOP_IMAGES = 4  # per caption; word-level outputs are shown for the first


def rounded(array: chex.Array) -> list:
    """Returns an array as nested lists of rounded numbers, for JSON."""
    return np.asarray(array, np.float64).round(DECIMALS).tolist()


@functools.partial(jax.jit, static_argnums=(0, 1))
def _attention(
    model: CrossAttentionMatcher, precision: Precision, variables: chex.ArrayTree, images: Images, texts: Texts
) -> dict[str, chex.Array]:
    def attend(model: CrossAttentionMatcher) -> dict[str, chex.Array]:
        return model.attention_pairwise(model.encode_image(images), model.encode_text(texts))

    with jax.default_matmul_precision(precision):
        return model.apply(variables, method=attend)


def has_word_outputs(run: Run) -> bool:
    """Returns whether the model of a run has `WORD_HEADS`, or attention."""
    return has_heads(run.model, WORD_HEADS) or isinstance(run.model, CrossAttentionMatcher)


def check(runs: Sequence[Run], encoder: str | None = None) -> TextNetwork | None:
    """Returns the text encoder whose vectors the model of a run reads, None for other models; computes nothing.

    Args:
      runs: One run, whose model has word-level outputs.
      encoder: The run directory, or the folder, of the text encoder, if it has moved.

    Raises:
      UserError: If there are several runs, or the model has no such outputs, or the text encoder is not found.
    """
    if len(runs) > 1:
        raise UserError(f'--explain needs a single model, but there are {len(runs)}; give one --workdir')
    run = runs[0]
    if not has_word_outputs(run):
        raise UserError(
            f'--explain does not apply to {run.workdir}: {type(run.model).__name__} has no attention of words over '
            f'regions, nor the heads {" and ".join(WORD_HEADS)}; train one that has, such as scan:t2i,avg,f30k'
        )
    return of_run(run, encoder)


def check_examples(run: Run) -> None:
    """Raises a UserError unless a run's model has `WORD_HEADS`; computes nothing."""
    if not has_heads(run.model, WORD_HEADS):
        raise UserError(
            f'--show needs a model with the heads {" and ".join(WORD_HEADS)}, which {run.workdir} lacks; leave it out'
        )


def retrieve_images(
    sims: np.ndarray, image_of_text: np.ndarray, count: int, folds: int = 1
) -> list[tuple[int, Retrieved]]:
    """Retrieves the best images for some texts, evenly spaced over the split.

    Args:
      sims: [I, T].
      image_of_text: The true image of each text, int [T].
      count: The number of texts; all, if there are fewer.
      folds: Consecutive parts of the images; a text retrieves images of its own part.

    Returns:
      `min(count, T)` pairs of a text and its `TOP_IMAGES` best images, in ascending order of the texts.
    """
    images, texts = sims.shape
    size = images // folds
    pairs = []
    for text in evenly_spaced(count, texts):
        start = int(image_of_text[text]) // size * size
        matches = np.arange(start, start + size) == image_of_text[text]
        best = retrieve(np.asarray(sims[start : start + size, text]), matches, TOP_IMAGES)
        pairs.append((text, best._replace(top=[start + image for image in best.top])))
    return pairs


def describe_words(scorer: PairScorer, images: np.ndarray, ids: Sequence[np.ndarray]) -> Iterator[dict[str, Any]]:
    """Describes the word predictions for N captions.

    Args:
      scorer: A scorer of the images, with a model that has `WORD_HEADS`.
      images: The image of each caption, int [N].
      ids: N captions, with special tokens.

    Yields:
      `words`, `mismatch` (the probability that the word does not match the image) and `corrections`, lists as long as
      the caption with its special tokens.
    """
    names = scorer.run.vocabulary.words
    for match_prob, corrections, row in zip(*scorer.predict_words(images, join(ids)), ids, strict=True):
        yield {
            'words': [names[word] for word in row],
            'mismatch': rounded(1 - match_prob[: len(row)]),
            'corrections': [names[word] for word in corrections[: len(row)]],
        }


class WordOutputs:
    """The word-level outputs of a run for images of a split with any captions."""

    def __init__(
        self,
        run: Run,
        split: Split,
        options: ScoringOptions = DEFAULT_OPTIONS,
        text_network: TextNetwork | None = None,
    ):
        """Prepares the model.

        Args:
          run: A run whose model has `WORD_HEADS`, or attention.
          split: The images.
          options: Precision and memory.
          text_network: The text encoder whose vectors of tokens the model reads; None for other models.
        """
        self._run = run
        self._split = split
        self._precision = resolve_options(run, options).precision
        self._scorer = PairScorer(run, split, options) if has_heads(run.model, WORD_HEADS) else None
        self._text_network = text_network
        self._variables = jax.device_put(run.variables) if self._scorer is None else None

    def of(self, images: Sequence[int], captions: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yields the outputs of caption n with image images[n], see `describe`."""
        ids = [self._run.vocabulary.encode(caption) for caption in captions]
        if self._scorer is not None:
            yield from describe_words(self._scorer, np.array(images), ids)
            return
        tokens = join(ids)
        if self._text_network is not None:
            tokens = self._text_network.add_vectors(tokens)
        longest = bucket(tokens.lengths.max(), LENGTH_MULTIPLE)
        for row, image in enumerate(images):
            texts = pad_texts(tokens, np.array([row]), longest)
            features = take_images(self._split, np.array([image]), self._run.model.reads)
            attention = _attention(self._run.model, self._precision, self._variables, features, texts)
            length = len(ids[row])
            counts = self._split.counts
            regions = None if counts is None else int(counts[image])  # without padding, where there may be some
            yield {
                'words': [self._run.vocabulary.words[word] for word in ids[row]],
                'attention': {name: rounded(weights[0, :length, :regions]) for name, weights in attention.items()},
            }


def _outputs(
    outputs: WordOutputs, split: Split, pairs: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], dict[str, Any]]:
    """Returns the outputs, and the boxes of the regions, of pairs of a text and an image."""
    texts, images = zip(*pairs, strict=True)
    described = outputs.of(images, [split.captions[text] for text in texts])
    by_pair = {}
    for pair, output in zip(pairs, described, strict=True):
        _, image = pair
        boxes = None if split.boxes is None else rounded(split.boxes[image, : int(split.counts[image])])
        by_pair[pair] = {'boxes': boxes, **output}
    return by_pair


def describe(
    run: Run,
    split: Split,
    pairs: Sequence[tuple[int, Retrieved]],
    options: ScoringOptions = DEFAULT_OPTIONS,
    text_network: TextNetwork | None = None,
) -> dict[str, Any]:
    """Describes the retrieved images of each text, with the model's word-level outputs.

    Args:
      run: A run whose model has `WORD_HEADS`, or attention.
      split: Images and texts.
      pairs: See `retrieve_images`.
      options: Precision and memory.
      text_network: See `check`.

    Returns:
      A dict for JSON: `data`, `workdir`, `step`, and `pairs`, each with its `caption`, the `retrieved` images, the
      `true_image` and its `rank`, and a `verdict` in words. For the `words` of a pair
      either `mismatch`, the probability that each word does not match the image, and `corrections`, the predicted
      words; or `attention`, name -> word by region, see
      `CrossAttentionMatcher.attention_block`. `boxes` are the boxes of the image's regions, or None. If the first image
      is wrong, `on_true_image` has the outputs and the boxes for the right one.
    """
    firsts = [(text, retrieved.top[0]) for text, retrieved in pairs]
    true_pairs = [(text, int(split.image_of_text[text])) for text, retrieved in pairs if not retrieved.correct[0]]
    outputs = _outputs(WordOutputs(run, split, options, text_network), split, firsts + true_pairs)
    described = []
    for text, retrieved in pairs:
        true = int(split.image_of_text[text])
        hits = []
        for image, score, right in zip(retrieved.top, retrieved.scores, retrieved.correct, strict=True):
            hit = {'image': image, 'image_id': split.image_ids[image], 'score': round(score, DECIMALS), 'right': right}
            hits.append(hit)
        best = hits[0]
        wrong = f'wrong; the right image, {split.image_ids[true]}, is at rank {retrieved.rank}'
        result = 'the right image' if best['right'] else wrong
        described.append(
            {
                'text': text,
                'caption': split.captions[text],
                **best,
                'true_image': true,
                'true_image_id': split.image_ids[true],
                'rank': retrieved.rank,
                'retrieved': hits,
                'verdict': f'retrieved {best["image_id"]}, score {best["score"]:.3g}, {result}',
                **outputs[text, best['image']],
            }
        )
        if not best['right']:
            described[-1]['on_true_image'] = outputs[text, true]
    return {'data': split.name, 'workdir': str(run.workdir), 'step': run.step, 'pairs': described}


def describe_captions(
    scorer: PairScorer, split: Split, texts: np.ndarray, sets: Mapping[str, Sequence[Sequence[str]]], count: int
) -> list[dict[str, Any]]:
    """Describes the first perturbed caption of some captions, evenly spaced over those that have one.

    Args:
      scorer: A scorer of the split's images, with a model that has `WORD_HEADS`.
      split: Images and captions.
      texts: The rows of the captions, int [N].
      sets: Name of a set -> for each of the T captions its perturbed captions, see
        `discrimination.sets.perturbed_captions`.
      count: Examples per set, if there are as many.

    Returns:
      Dicts for JSON, as `jitm.report` shows them: `describe_words` of the perturbed caption, the original
      `caption`, which words were `changed` (none, if the numbers of tokens differ), and both scores in a `verdict`.
    """
    vocabulary = scorer.run.vocabulary
    described = []
    for name, captions in sets.items():
        available = [int(text) for text in texts if captions[text]]
        chosen = [available[n] for n in evenly_spaced(count, len(available))]
        images = split.image_of_text[chosen]
        originals = [vocabulary.encode(split.captions[text]) for text in chosen]
        perturbed = [vocabulary.encode(captions[text][0]) for text in chosen]
        scores = scorer.score(images, join(originals)), scorer.score(images, join(perturbed))
        rows = zip(chosen, originals, perturbed, *scores, describe_words(scorer, images, perturbed), strict=True)
        for text, original, ids, original_score, score, output in rows:
            image = int(split.image_of_text[text])
            replaced = (original != ids).tolist() if len(original) == len(ids) else [False] * len(ids)
            described.append(
                {
                    'set': name,
                    'text': text,
                    'caption': split.captions[text],
                    'image': image,
                    'image_id': split.image_ids[image],
                    'changed': replaced,
                    'verdict': f'{name}, {split.image_ids[image]}, score {score:.3g}, caption {original_score:.3g}',
                    **output,
                }
            )
    return described
