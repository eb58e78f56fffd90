"""Training batches as a pure function of (seed, step), so that a checkpoint needs no state of the data."""

import dataclasses
import functools
import itertools

import numpy as np

from jitm.data.augmentation import Augmentation, change_words, drop_regions, example_generator, keep_regions
from jitm.data.candidates import OfflineNegatives
from jitm.data.cider import Relevance
from jitm.data.masking import MaskedWords
from jitm.data.perturbations import PerturbedCaptions
from jitm.data.pixels import Photos
from jitm.data.splits import Split, bucket, pad_texts, take_images
from jitm.data.text import Tokens, join
from jitm.data.vocabularies import Tokenizer
from jitm.files import hash_arrays, hash_json
from jitm.types import Batch, Images, Pairs, Texts

# These separate the random numbers of the extra pairs, crops, mismatched pairs and perturbed captions from others.
_EXTRA, _CROP, _MISMATCHED, _PERTURBED = 2, 3, 4, 5


@functools.lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox([seed, epoch])).permutation(size)


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The training batches of a split.

    An example is a text with its image. An epoch is a permutation of the texts, sampled from (seed, epoch) and split
    into batches. The last batch is smaller if their number is not a multiple of B; with `drop_last` it is left out. The
    texts that an epoch leaves out differ between epochs.

    Attributes:
      split: The images and captions.
      tokens: The captions as ids.
      vocabulary: The vocabulary of these ids.
      batch_size: The size B of the global batch.
      seed: The seed of the permutations.
      length_multiple: Texts are padded to a multiple of this, at least to the longest text of the batch before
        augmentation.
      augmentation: The augmentation of the examples.
      relevance: The caption metric of any texts for any images of the split, added to the batches; optional.
      max_length: The maximum length of the padded texts; None for any length.
      offline: The mined negatives to sample from, added to the batches; optional.
      reads: The fields of `Images` in the batches.
      num_extra: P, the number of candidate pairs besides those of the batch.
      mismatched: Whether the batches have a mismatched pair for each pair.
      masked: The masking of the captions; optional.
      perturbed: The perturbed captions to sample from, one for each pair of the batches; optional.
      drop_last: Whether the last, smaller batch of an epoch is left out, so that all batches have one size.
      num_devices: The number of devices over which a batch is split; the last batch is cut to a multiple of this.
    """

    split: Split
    tokens: Tokens
    vocabulary: Tokenizer
    batch_size: int
    seed: int
    length_multiple: int
    augmentation: Augmentation
    relevance: Relevance | None = None
    max_length: int | None = None
    offline: OfflineNegatives | None = None
    reads: tuple[str, ...] = ('regions',)
    num_extra: int = 0
    mismatched: bool = False
    masked: MaskedWords | None = None
    perturbed: PerturbedCaptions | None = None
    drop_last: bool = True
    num_devices: int = 1

    @property
    def identity(self) -> dict[str, object]:
        """Identifies the data: the identity of the split, and hashes of all other inputs."""
        relevance = {'relevance': self.relevance.hash} if self.relevance and self.relevance.hash else {}
        mined = {'candidates': self.offline.candidates.hash} if self.offline else {}
        boxes = {'boxes': hash_arrays([self.split.boxes])} if 'locations' in self.reads else {}
        pixels = {'pixels': list(self.split.pixels.shape)} if 'pixels' in self.reads else {}
        tags = {'tags': hash_json(self.split.tags)} if 'tags' in self.reads else {}
        phrases = {'phrases': self.masked.hash} if self.masked else {}
        graphs = {'perturbed': self.perturbed.hash} if self.perturbed else {}
        vectors = {'token_vectors': self.split.token_vectors.hash} if self.split.token_vectors else {}
        return self.split.identity | relevance | mined | boxes | pixels | tags | phrases | graphs | vectors

    @property
    def texts_per_epoch(self) -> int:
        """Number of texts in the batches of an epoch."""
        return self.split.num_texts - self.split.num_texts % (self.batch_size if self.drop_last else self.num_devices)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch, the smaller one included."""
        return -(-self.texts_per_epoch // self.batch_size)

    def text_index(self, step: int) -> np.ndarray:
        """Returns the rows of the texts in the batch of a step: int64 [B], or fewer in the last batch of an epoch."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order = _permutation(self.seed, epoch, self.split.num_texts)[: self.texts_per_epoch]
        return order[position * self.batch_size : (position + 1) * self.batch_size]

    @functools.cached_property
    def num_shapes(self) -> int:
        """The number of shapes of the captions in the batches of the first epoch, each of which compiles a step."""
        batches = [self.text_index(step) for step in range(self.steps_per_epoch)]
        longest = ((len(texts), self.tokens.lengths[texts].max()) for texts in batches)
        return len({(count, bucket(length, self.length_multiple, self.max_length)) for count, length in longest})

    def one_pair(self) -> Batch:
        """Makes a batch of one pair, without extra pairs, for the shapes of a model's inputs."""
        return dataclasses.replace(self, num_extra=0).batch(0, 0, self.batch_size)

    def batch(self, step: int, shard: int = 0, num_shards: int = 1) -> Batch:
        """Makes the batch of a step, or the rows of one process.

        Args:
          step: The step, from 0.
          shard: The number of the part, from 0.
          num_shards: The number of equal parts of the batch.

        Returns:
          Numpy arrays with B / num_shards rows (fewer in the last batch of an epoch), padded to the same length in
          every shard.
        """
        text_index = self.text_index(step)
        offline, extra = self._sample_offline(step, text_index), self._sample_extra(step)
        mismatched = self._sample_mismatched(step, text_index)
        all_texts = np.concatenate([text_index, extra, *mismatched[1:2], *(texts for _, texts in offline)])
        perturbed, is_perturbed = self._sample_perturbed(step, text_index)
        longest = max(self.tokens.lengths[all_texts].max(), perturbed.lengths.max(initial=0))
        length = bucket(longest, self.length_multiple, self.max_length)
        rows = np.split(text_index, num_shards)[shard]
        image_index = self.split.image_of_text[rows]
        images, texts = self._take_images(step, image_index, rows), pad_texts(self.tokens, rows, length)
        if self.augmentation.changes:
            images, texts = self._augment(step, rows, images, length)
        batch = Batch(
            step=np.int32(step),
            images=images,
            texts=texts,
            image_index=image_index,
            relevance=None if self.relevance is None else self.relevance.phi(image_index, text_index),
            offline=tuple(
                self._pairs(step, *(np.split(index, num_shards)[shard] for index in pairs), length) for pairs in offline
            )
            or None,
            clean=None if self.split.clean is None else self.split.clean[rows],
            text_index=rows.astype(np.int32),
        )
        if self.num_extra:
            extra_rows = np.split(extra, num_shards)[shard]
            extra_index = self.split.image_of_text[extra_rows]
            batch = batch.replace(extra=self._pairs(step, extra_index, extra_rows, length), extra_index=extra_index)
        if self.mismatched:
            image_rows, text_rows, replaced = (np.split(index, num_shards)[shard] for index in mismatched)
            batch = batch.replace(mismatched=self._pairs(step, image_rows, text_rows, length), text_replaced=replaced)
        if self.perturbed:
            positions = np.split(np.arange(len(text_index)), num_shards)[shard]
            changed = pad_texts(perturbed, positions, length)
            batch = batch.replace(perturbed=changed, is_perturbed=is_perturbed[positions])
        if self.masked:
            masking, phrases = self.masked.masking, [self.masked.phrases[t] for t in rows]
            variants = masking.mask_batch(texts.ids, phrases, self.vocabulary, seed=self.seed, step=step, texts=rows)
            batch = batch.replace(masked=variants, caption_words=self.masked.words[image_index])
        return batch

    def _sample_extra(self, step: int) -> np.ndarray:
        """Samples the texts of the extra pairs of a step: int64 [P]."""
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, step], spawn_key=(_EXTRA,)))
        return rng.choice(self.split.num_texts, self.num_extra, replace=False)

    def _sample_mismatched(self, step: int, text_index: np.ndarray) -> tuple[np.ndarray, ...]:
        """Samples a mismatched pair for each text of a global batch, as released for OSCAR (Li et al., 2020).

        With equal probability, the text or the image of the pair is replaced by that of another image.

        Returns:
          Images and texts of the pairs int64 [B], and whether the text was replaced bool [B]; () without `mismatched`.
        """
        if not self.mismatched:
            return ()
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, step], spawn_key=(_MISMATCHED,)))
        own, replaced = self.split.image_of_text[text_index], rng.random(len(text_index)) < 0.5
        others = rng.integers(self.split.num_images - 1, size=len(own))
        others += others >= own
        texts = self.split.sample_texts(others, rng)
        return np.where(replaced, own, others), np.where(replaced, texts, text_index), replaced

    def _sample_perturbed(self, step: int, text_index: np.ndarray) -> tuple[Tokens, np.ndarray]:
        """Samples a perturbed caption for each text of a global batch.

        Returns:
          The B captions, and which of them have other ids than the text, bool [B]: the text itself is given for one
          that cannot be perturbed, or whose perturbed caption is too long. Nothing without `perturbed`.
        """
        captions, changed = [np.zeros(0, np.int32)], []
        for text in map(int, text_index if self.perturbed else ()):
            rng = np.random.default_rng(np.random.SeedSequence([self.seed, step, text], spawn_key=(_PERTURBED,)))
            own = self.tokens.ids[self.tokens.starts[text] : self.tokens.starts[text + 1]]
            caption = self.perturbed.sample(text, rng)
            ids = own if caption is None else self.vocabulary.encode(caption)
            changed.append(not np.array_equal(ids, own) and len(ids) <= (self.max_length or len(ids)))
            captions.append(ids if changed[-1] else own)
        return join(captions[1:] or captions), np.array(changed, bool)

    def _sample_offline(self, step: int, text_index: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """Samples images and texts of the two mined pairs for each example of a global batch; () without `offline`."""
        if self.offline is None:
            return ()
        return self.offline.sample(text_index, self.split, np.random.default_rng([self.seed, step]))

    def _pairs(self, step: int, images: np.ndarray, texts: np.ndarray, length: int) -> Pairs:
        return Pairs(self._take_images(step, images, texts), pad_texts(self.tokens, texts, length))

    def _take_images(self, step: int, index: np.ndarray, texts: np.ndarray) -> Images:
        """Reads the images of some texts; photos are cropped as the seed, the step and the text decide."""
        photos = self.split.pixels
        if 'pixels' not in self.reads or not isinstance(photos, Photos) or not photos.transform.is_random:
            return take_images(self.split, index, self.reads, self.tokens.tags)

        def make_generator(position: int) -> np.random.Generator:
            entropy = [self.seed, step, int(texts[position])]
            return np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=(_CROP,)))

        images = take_images(self.split, index, set(self.reads) - {'pixels'}, self.tokens.tags)
        return images.replace(pixels=photos.sample(index, make_generator))

    def _augment(self, step: int, rows: np.ndarray, images: Images, length: int) -> tuple[Images, Texts]:
        augmentation = self.augmentation
        regions = 0 if images.regions is None else images.regions.shape[1]
        kept, texts = np.empty((len(rows), augmentation.num_views, regions), bool), []
        for n, view in itertools.product(range(len(rows)), range(augmentation.num_views)):
            rng = example_generator(self.seed, step, int(rows[n]), view)
            if regions:
                kept[n, view] = keep_regions(images.counts[n], regions, augmentation.drop_regions, rng)
            if augmentation.change_words > 0:
                changed = change_words(
                    self.tokens.ids[self.tokens.starts[rows[n]] : self.tokens.starts[rows[n] + 1]],
                    self.vocabulary.continues,
                    self.vocabulary.mask,
                    rate=augmentation.change_words,
                    keep_special_tokens=augmentation.keep_special_tokens,
                    rng=rng,
                )
                texts.append(changed)
        images = drop_regions(images, kept) if regions else images
        if texts:
            return images, pad_texts(join(texts), np.arange(len(texts)), length)
        return images, pad_texts(self.tokens, np.repeat(rows, augmentation.num_views), length)
