"""Training batches as a pure function of (seed, step), so that a checkpoint needs no state of the data."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jitm.data.images.pixels import BrokenPhotos, Photos
from jitm.data.pairs.augmentation import Augmentation, change_words, drop_regions, example_generator, keep_regions
from jitm.data.profile import fits, make_profile, multiply, resize
from jitm.data.scene_graphs.tag_rules import CaptionGraph
from jitm.data.splits import Split, bucket, pad_texts, take_images
from jitm.data.text.vocabularies import Tokenizer
from jitm.data.text.word_level import Tokens, join
from jitm.files import hash_arrays, hash_json
from jitm.types import Batch, Images, Pairs, Profile, Texts

STEPS_PER_SHAPE = 50  # a step for one more shape compiles about as long as so many steps take
CROP = 3  # separates the random numbers of crops from the sources' numbers
BROKEN = 6
MAX_TRIES = 10  # most photos are broken if as many pairs in a row cannot be read


class Sampler(NamedTuple):
    """A source's samples for each batch, as a pure function of the seed and the step.

    Attributes:
      pick: `(step, rows) -> (picked, lengths)` for the rows int64 [B] of the texts of the global batch: a tree of numpy
        arrays, and the lengths of the captions in it, to which the texts of the batch are padded.
      take: `(picked, part) -> arrays` for one process.
      identity: Identifiers of the data that it samples from, by name.
      constants: Metrics of the run that do not change, by name.
    """

    pick: Callable[[int, np.ndarray], tuple[Any, np.ndarray]]
    take: Callable[[Any, 'Part'], Any]
    identity: Mapping[str, object] = MappingProxyType({})
    constants: Mapping[str, float] = MappingProxyType({})


def generator(*entropy: int, stream: int) -> np.random.Generator:
    """Returns the random generator of some numbers, such as the seed and the step, in a stream of its own.

    Streams in use: 1 masking, 2 shortlist, 3 crops, 4 sampled, 5 perturbed, 6 pairs of broken photos.
    """
    return np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=(stream,)))


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
      max_length: The maximum length of the padded texts; None for any length.
      skips_padding: Whether models compute little of the padding: whole batches have a `profile` and one padded length.
      reads: The fields of `Images` in the batches.
      drop_last: Whether the last, smaller batch of an epoch is left out, so that all batches have one size.
      num_devices: The number of devices over which a batch is split; the last batch is cut to a multiple of this.
      load_scene_graphs: The function that loads the scene graphs of the captions; None without.
      samplers: The samplers of the sources, by the names of their samples in `Batch.drawn`.
    """

    split: Split
    tokens: Tokens
    vocabulary: Tokenizer
    batch_size: int
    seed: int
    length_multiple: int
    augmentation: Augmentation
    max_length: int | None = None
    skips_padding: bool = False
    reads: tuple[str, ...] = ('regions',)
    drop_last: bool = True
    num_devices: int = 1
    load_scene_graphs: Callable[[Split], Sequence[CaptionGraph]] | None = None
    samplers: Mapping[str, Sampler] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def scene_graphs(self) -> Sequence[CaptionGraph] | None:
        """The scene graphs of the captions of the split; None without."""
        return self.load_scene_graphs and self.load_scene_graphs(self.split)

    @property
    def identity(self) -> dict[str, object]:
        """Identifies the data: the identity of the split, and hashes of all other inputs."""
        split = self.split
        drawn = {}
        for sampler in self.samplers.values():
            drawn |= sampler.identity
        boxes = {'boxes': hash_arrays([split.boxes])} if 'locations' in self.reads else {}
        pixels = {'pixels': list(split.pixels.shape)} if 'pixels' in self.reads else {}
        tags = {'tags': hash_json(split.tags)} if 'tags' in self.reads else {}
        vectors = {'token_vectors': split.token_vectors.hash} if split.token_vectors else {}
        return split.identity | drawn | boxes | pixels | tags | vectors

    @property
    def constants(self) -> dict[str, float]:
        """Metrics of the run that do not change, by name."""
        constants: dict[str, float] = {}
        for sampler in self.samplers.values():
            constants |= sampler.constants
        return constants

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
    def profile(self) -> Profile | None:
        """Bounds the lengths of the texts of a device in a whole batch; None without models that need it."""
        rows = self.batch_size // self.num_devices
        return make_profile(self.tokens.lengths, rows) if self.skips_padding else None

    def shape(self, texts: np.ndarray, longest: int = 0) -> tuple[int, Profile | None]:
        """Returns the padded length of the texts of a global batch, and their profile if they fit it.

        Args:
          texts: The rows of the texts, int [B].
          longest: The length of the longest text that a source has drawn.
        """
        lengths = self.tokens.lengths[texts]
        profile = self.profile
        longest_text = (self.tokens.lengths if profile else lengths).max()
        length = bucket(max(longest, longest_text), self.length_multiple, self.max_length)
        if not profile or len(texts) < self.batch_size or not fits(profile, lengths.reshape(self.num_devices, -1)):
            return length, None
        if longest <= profile.length:
            length = min(length, profile.length)
        return length, resize(profile, length)

    @functools.cached_property
    def num_shapes(self) -> int:
        """The number of shapes of the captions in the batches of the first epoch; each compiles a step."""
        batches = [self.text_index(step) for step in range(self.steps_per_epoch)]
        return len({(len(texts), *self.shape(texts)) for texts in batches})

    def one_pair(self) -> Batch:
        """Makes a batch of one pair, without samples of sources, for the shapes of a model's inputs."""
        return dataclasses.replace(self, samplers={}).batch(0, 0, self.batch_size)

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
        picked = {name: sampler.pick(step, text_index) for name, sampler in self.samplers.items()}
        longest = max((lengths.max(initial=0) for _, lengths in picked.values()), default=0)
        length, profile = self.shape(text_index, longest)
        part = Part(self, step, length, shard, num_shards)
        images, rows = self.take_pairs(step, part.cut(text_index))
        texts = part.texts(rows)
        if self.augmentation.changes:
            images, texts = self._augment(step, rows, images, part.length)
        if profile:
            texts = texts.replace(profile=multiply(profile, self.augmentation.num_views))
        return Batch(
            step=np.int32(step),
            images=images,
            texts=texts,
            image_index=self.split.image_of_text[rows],
            text_index=rows.astype(np.int32),
            clean=None if self.split.clean is None else self.split.clean[rows],
            drawn={name: sampler.take(picked[name][0], part) for name, sampler in self.samplers.items()},
        )

    def take_images(self, step: int, index: np.ndarray, texts: np.ndarray) -> Images:
        """Reads the images of some texts; photo crops depend on the seed, the step and the text."""
        photos = self.split.pixels
        if 'pixels' not in self.reads or not isinstance(photos, Photos) or not photos.transform.is_random:
            return take_images(self.split, index, self.reads, self.tokens.tags)
        generators = [generator(self.seed, step, text, stream=CROP) for text in texts.tolist()]
        images = take_images(self.split, index, set(self.reads) - {'pixels'}, self.tokens.tags)
        return images.replace(pixels=photos.sample(index, generators))

    def take_pairs(self, step: int, texts: np.ndarray, tries: int = 0) -> tuple[Images, np.ndarray]:
        """Reads the images of some texts, and returns these texts.

        With `data.broken` 'skip' a pair whose photo cannot be decoded is replaced by a pair whose text is no longer,
        sampled by the seed and the text, so that no shape of the batch changes.
        """
        try:
            return self.take_images(step, self.split.image_of_text[texts], texts), texts
        except BrokenPhotos as broken:
            if self.split.pixels.broken != 'skip' or tries == MAX_TRIES:
                raise
            self.split.pixels.leave_out(broken.errors.values())
            rows = [*broken.errors]
            replaced = texts.copy()
            replaced[rows] = [self._instead(text, tries) for text in texts[rows]]
        return self.take_pairs(step, replaced, tries + 1)

    def _instead(self, text: int, tries: int) -> int:
        lengths = self.tokens.lengths
        rng = generator(self.seed, text, tries, stream=BROKEN)
        return rng.choice(np.flatnonzero(lengths <= lengths[text]))

    def _augment(self, step: int, rows: np.ndarray, images: Images, length: int) -> tuple[Images, Texts]:
        augmentation = self.augmentation
        regions = 0 if images.regions is None else images.regions.shape[1]
        keep = np.empty((len(rows), augmentation.num_views, regions), bool)
        texts = []
        for n, view in itertools.product(range(len(rows)), range(augmentation.num_views)):
            rng = example_generator(self.seed, step, int(rows[n]), view)
            if regions:
                keep[n, view] = keep_regions(images.counts[n], regions, augmentation.drop_regions, rng)
            if augmentation.change_words > 0:
                replaced = change_words(
                    self.tokens.ids[self.tokens.starts[rows[n]] : self.tokens.starts[rows[n] + 1]],
                    self.vocabulary.continues,
                    self.vocabulary.mask,
                    rate=augmentation.change_words,
                    keep_special_tokens=augmentation.keep_special_tokens,
                    rng=rng,
                )
                texts.append(replaced)
        images = drop_regions(images, keep) if regions else images
        if texts:
            return images, pad_texts(join(texts), np.arange(len(texts)), length)
        return images, pad_texts(self.tokens, np.repeat(rows, augmentation.num_views), length)


def with_few_shapes(pipeline: Pipeline, steps: int) -> Pipeline:
    """Pads captions to fewer lengths where a run would take fewer than `STEPS_PER_SHAPE` steps of each shape.

    Args:
      pipeline: The training batches; those of a profile have few shapes anyway.
      steps: The number of steps of the run.

    Returns:
      The batches with the smallest multiple of `length_multiple` that leaves each shape so many steps, or else with the
      smallest that has the fewest shapes.
    """
    if pipeline.profile or pipeline.num_shapes * STEPS_PER_SHAPE <= steps:
        return pipeline
    multiple = pipeline.length_multiple
    longest = bucket(pipeline.tokens.lengths.max(), multiple)
    coarser = [dataclasses.replace(pipeline, length_multiple=n) for n in range(multiple, longest + 1, multiple)]
    return min(coarser, key=lambda pipeline: max(pipeline.num_shapes * STEPS_PER_SHAPE, steps))


class Part(NamedTuple):
    """The part of a batch that belongs to one process.

    Attributes:
      pipeline: The training batches.
      step: The step of the batch.
      length: The length to which the texts of the batch are padded.
      shard: The number of the part, from 0.
      num_shards: The number of equal parts of the batch.
    """

    pipeline: Pipeline
    step: int
    length: int
    shard: int
    num_shards: int

    def cut(self, rows: np.ndarray) -> np.ndarray:
        """Returns this part of the rows of a global array."""
        return np.split(rows, self.num_shards)[self.shard]

    def texts(self, rows: np.ndarray) -> Texts:
        """Returns the texts of the split in some rows, padded."""
        return pad_texts(self.pipeline.tokens, rows, self.length)

    def pairs(self, images: np.ndarray, texts: np.ndarray) -> Pairs:
        """Returns the images and the texts of the split in some rows, int [N] each."""
        return Pairs(self.pipeline.take_images(self.step, images, texts), self.texts(texts))
