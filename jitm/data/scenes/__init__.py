"""The synthetic data set `scenes`: pictures of colored shapes with captions, boxes, scene graphs and hard negatives.

It is generated when it is loaded. Image i of a split depends only on the seed, the split and i.
"""

import dataclasses
import functools
import itertools
from typing import ClassVar, NamedTuple

import numpy as np

from jitm.data.scene_graphs import CaptionGraph
from jitm.data.scenes import drawing, grammar, graphs
from jitm.data.scenes.grammar import Caption, Swap
from jitm.data.scenes.graphs import Object, Phrase, Relation, SceneGraph, Statement, holds
from jitm.data.splits import Split
from jitm.errors import UserError, did_you_mean
from jitm.types import Count, Index

__all__ = ['Object', 'Phrase', 'Relation', 'SceneGraph', 'SceneSplit', 'Statement', 'Swap', 'holds', 'load']

MIN_OBJECTS = 2
MAX_OBJECTS = 5


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class SceneSplit(Split):
    """A split with the ground truth of its images and captions.

    Attributes:
      graphs: I scene graphs; object r is region r.
      described: The T captions with what is known of each.
    """

    graphs: tuple[SceneGraph, ...]
    described: tuple[Caption, ...]

    PER_IMAGE: ClassVar = (*Split.PER_IMAGE, 'graphs')
    PER_TEXT: ClassVar = (*Split.PER_TEXT, 'described')

    @functools.cached_property
    def caption_graphs(self) -> tuple[CaptionGraph, ...]:
        """T scene graphs of the captions, without the picture itself."""
        return tuple(caption.graph for caption in self.described)

    @functools.cached_property
    def statements(self) -> tuple[Statement, ...]:
        """T statements, the meaning of each caption."""
        return tuple(caption.statement for caption in self.described)

    @functools.cached_property
    def swaps(self) -> tuple[tuple[Swap, ...], ...]:
        """The perturbed captions for each of the T captions, which differ from it by one exchange; may be empty."""
        return tuple(map(grammar.swaps, self.described))


class _Scene(NamedTuple):
    graph: SceneGraph
    boxes: np.ndarray
    pixels: np.ndarray
    captions: list[Caption]


def load(
    split: str, *, seed: Index = 0, train_images: Count = 2000, dev_images: Count = 500, test_images: Count = 500
) -> SceneSplit:
    """Generates one split: 64x64 pictures of 2 to 5 shapes, five captions each.

    Args:
      split: `train`, `dev` or `test`.
      seed: The seed of the data set.
      train_images: The number of images of `train`; with a smaller number, the first of them.
      dev_images: The number of images of `dev`.
      test_images: The number of images of `test`.

    Returns:
      The split, with float32 regions [I, 5, 200] (an 8x8x3 patch, then x1 y1 x2 y2, centre x y, width, height); object
      tags are the shapes without size and color.

    Raises:
      UserError: If the split is unknown.
    """
    sizes = {'train': train_images, 'dev': dev_images, 'test': test_images}
    if split not in sizes:
        raise UserError(f"scenes has no split '{split}'{did_you_mean(split, sizes)}")

    split_number = list(sizes).index(split)
    scenes = [_make_scene(seed, split_number, i) for i in range(sizes[split])]
    captions = tuple(itertools.chain.from_iterable(scene.captions for scene in scenes))
    regions = np.zeros((len(scenes), MAX_OBJECTS, drawing.REGION_FEATURES), np.float32)
    boxes = np.zeros((len(scenes), MAX_OBJECTS, 4), np.float32)
    for i, scene in enumerate(scenes):
        count = len(scene.boxes)
        regions[i, :count] = drawing.region_features(scene.pixels, scene.boxes)
        boxes[i, :count] = scene.boxes / drawing.PIXELS
    return SceneSplit(
        name=f'scenes/{split}',
        dataset='scenes',
        regions=regions,
        counts=np.array([len(scene.boxes) for scene in scenes], np.int32),
        captions=tuple(caption.text for caption in captions),
        image_of_text=np.repeat(np.arange(len(scenes), dtype=np.int32), grammar.CAPTIONS_PER_IMAGE),
        image_ids=tuple(f'{split}-{i:06d}' for i in range(len(scenes))),
        boxes=boxes,
        pixels=np.stack([scene.pixels for scene in scenes]),
        tags=tuple(scene.graph.tags for scene in scenes),
        graphs=tuple(scene.graph for scene in scenes),
        described=captions,
    )


def _make_scene(seed: int, split_number: int, index: int) -> _Scene:
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(split_number, index))))
    objects = _sample_objects(rng)
    relations = ()
    while not relations:  # most captions need a relation
        boxes = drawing.place(objects, rng)
        relations = graphs.find_relations(boxes)
    graph = SceneGraph(objects, relations)
    return _Scene(graph, boxes, drawing.paint(objects, boxes, rng), grammar.describe(graph, rng))


def _sample_objects(rng: np.random.Generator) -> tuple[Object, ...]:
    lengths = len(graphs.SIZES), len(graphs.COLOURS), len(graphs.SHAPES)
    kinds = rng.choice(np.prod(lengths), size=rng.integers(MIN_OBJECTS, MAX_OBJECTS + 1), replace=False)
    indices = zip(*np.unravel_index(kinds, lengths), strict=True)
    return tuple(Object(graphs.SIZES[s], graphs.COLOURS[c], graphs.SHAPES[p]) for s, c, p in indices)
