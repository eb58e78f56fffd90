"""False sentences that a trained run writes for captions of any split (paper 001, table 4)."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import chex
import jax
import numpy as np

from jitm import config as config_lib
from jitm import parallel
from jitm.data.masking import Masking, caption_words, find_phrases
from jitm.data.pipeline import bucket, pad_texts, take_images
from jitm.data.scene_graphs import SentenceGraph
from jitm.data.splits import Split
from jitm.data.text import Vocabulary
from jitm.data.wordpiece import WordPiece
from jitm.errors import UserError
from jitm.evaluation.scoring import LENGTH_MULTIPLE
from jitm.models.matcher import Matcher
from jitm.runs.run import Run, load_run, read_tokens
from jitm.synthesis.generator import Synthesis, Synthetic
from jitm.types import Batch

TEXTS = 8  # whose sentences are written at once, on each device


@dataclasses.dataclass(frozen=True)
class Writer:
    """A run that wrote sentences in its training.

    Attributes:
      run: that learned from them.
      generator: the member that wrote them, the same one or another.
      masking: of captions.
      synthesis: how many sentences are drawn and kept.
    """

    run: Run
    generator: Run
    masking: Masking
    synthesis: Synthesis


@functools.lru_cache(maxsize=8)
def _compiled(model: Matcher, generator: Matcher, synthesis: Synthesis) -> Callable:
    """`((text of each row [N], Images, Texts, Masked, known words), (their variables, key)) -> Synthetic of N rows`."""

    def write(rows: tuple, shared: tuple[chex.ArrayTree, chex.ArrayTree, chex.PRNGKey]) -> Synthetic:
        (text, images, texts, masked, known), (variables, of_generator, key) = rows, shared
        batch = Batch(0, images, texts, text, masked=masked, caption_words=known)
        keys = jax.vmap(functools.partial(jax.random.fold_in, key))(text)
        return synthesis.choose(model, variables, (generator, of_generator), batch, keys)

    return parallel.map_rows(write)


def load_writer(workdir: str | Path, step: int | None = None, member: str | None = None) -> Writer:
    """Reads a run with what writes its sentences.

    Args:
      workdir: the run directory.
      step: the checkpoint; the best by validation if not given.
      member: the branch; the one that was validated if not given.

    Raises:
      UserError: if it writes none, or cannot be read.
    """
    run = load_run(workdir, step, member)
    config = run.config
    name = config['synthesis']['generator'] if 'synthesis' in config else ''  # which older runs have not
    if not name:
        raise UserError(
            f"{workdir} writes no sentences for the attack 'generated' (its config key 'synthesis.generator' is ''); "
            'name a run that does with --generator, such as one of configs/tags/tags_scenes.py'
        )
    generator = run if name == run.member else load_run(workdir, run.step, name)
    masking = config_lib.bind(Masking, config['masking'], where='masking')()
    return Writer(run, generator, masking, config_lib.bind(Synthesis, config['synthesis'], where='synthesis')())


def write_sentences(
    writer: Writer, split: Split, texts: np.ndarray, graphs: Sequence[SentenceGraph] | None = None, *, seed: int
) -> tuple[tuple[str, ...], ...]:
    """Writes false sentences as in training: masks, refills, and keeps those that the run itself finds hardest.

    A sentence that the vocabulary would read otherwise than it was written (with a special word in it) is left out.

    Args:
      writer: of the sentences.
      split: images and captions.
      texts: int [N], the captions.
      graphs: of the split's T sentences, in place of those that the run's config names.
      seed: of masks and words; those of a caption are the same whatever others are asked for.

    Returns:
      For each of the T captions its sentences, the hardest first; none where nothing was asked or found.

    Raises:
      UserError: if the run cannot read this split.
    """
    vocabulary, model = writer.run.vocabulary, writer.run.model
    tokens = read_tokens(writer.run, split)
    described = writer.run.config['scene_graphs']
    if graphs is None or not described['source']:
        graphs = config_lib.load_scene_graphs(described, split)
    phrases, known = find_phrases(split.captions, vocabulary, graphs), caption_words(tokens, split.image_of_text)
    length = bucket(tokens.lengths.max(), LENGTH_MULTIPLE, model.text_format.max_length)
    shared = parallel.put_everywhere((writer.run.variables, writer.generator.variables, jax.random.key(seed)))
    write, size = _compiled(model, writer.generator.model, writer.synthesis), TEXTS * parallel.num_local_devices()
    sentences: list[tuple[str, ...]] = [()] * split.num_texts
    for start in range(0, len(texts), size):
        rows = np.resize(texts[start : start + size], size)
        images, padded = split.image_of_text[rows], pad_texts(tokens, rows, length)
        of_rows = [phrases[text] for text in rows]
        masked = writer.masking.mask_batch(padded.ids, of_rows, vocabulary, seed=seed, step=0, texts=rows)
        shown = take_images(split, images, model.reads_locations)
        block = parallel.put_rows((rows.astype(np.int32), shown, padded, masked, known[images]))
        written = jax.device_get(write(block, shared))
        for n, text in enumerate(rows):
            ids = written.ids[n, written.there[n], : padded.lengths[n]]
            sentences[text] = tuple(_as_read(ids, vocabulary))
    return tuple(sentences)


def _as_read(ids: np.ndarray, vocabulary: Vocabulary | WordPiece) -> Iterator[str]:
    """The sentences [M, L] as text, as far as the vocabulary reads this as the same ids."""
    for row in ids:
        sentence = vocabulary.decode(row)
        if np.array_equal(vocabulary.encode(sentence), row):
            yield sentence
