"""Scene graphs, statements about them, and the truth of a statement.

Locations are boxes x1 y1 x2 y2 with y pointing down: above means a smaller y.
"""

import collections
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

SIZES = ('small', 'large')
COLOURS = ('red', 'green', 'blue', 'yellow', 'purple', 'orange', 'white', 'black')
SHAPES = ('circle', 'square', 'triangle', 'diamond', 'cross', 'ring')
INVERSE = {'left of': 'right of', 'right of': 'left of', 'above': 'below', 'below': 'above'}

# Only unambiguous relations count: one offset is at least twice the other and at least 1/8 of the picture.
CLEAR_RATIO = 2
CLEAR_OFFSET = 8


class Object(NamedTuple):
    """One shape of a picture."""

    size: str
    colour: str
    shape: str


class Relation(NamedTuple):
    """`subject predicate object`, where subject and object are indices of objects or of phrases."""

    subject: int
    predicate: str
    object: int


class SceneGraph(NamedTuple):
    """The objects of a picture and their relations.

    Attributes:
      objects: The objects in the order of the regions, all different.
      relations: All unambiguous ones, in both directions, over indices of objects.
    """

    objects: tuple[Object, ...]
    relations: tuple[Relation, ...]

    @property
    def tags(self) -> str:
        """The shapes of the objects, separated by blanks."""
        return ' '.join(thing.shape for thing in self.objects)


class Phrase(NamedTuple):
    """A mention of one object, or of `count` objects; None for properties that are not mentioned.

    A count of one means at least one such object, a larger count exactly this number.
    """

    size: str | None = None
    colour: str | None = None
    shape: str | None = None
    count: int = 1

    def fits(self, thing: Object) -> bool:
        """Returns whether an object has the mentioned properties."""
        return all(word in (None, value) for word, value in zip(self[:3], thing, strict=True))


class Statement(NamedTuple):
    """The meaning of a caption; different phrases refer to different objects.

    Attributes:
      phrases: The mentioned objects.
      relations: The relations between phrases with a count of 1, by their indices.
      total: The number of objects in the picture, or None if not mentioned.
    """

    phrases: tuple[Phrase, ...]
    relations: tuple[Relation, ...] = ()
    total: int | None = None

    def changed(self, phrases: Mapping[int, Phrase] = {}, relations: Mapping[int, Relation] = {}) -> 'Statement':
        """Returns the statement with other phrases or relations at some positions."""
        return self._replace(
            phrases=tuple(phrases.get(n, phrase) for n, phrase in enumerate(self.phrases)),
            relations=tuple(relations.get(n, relation) for n, relation in enumerate(self.relations)),
        )


def find_relations(boxes: np.ndarray) -> tuple[Relation, ...]:
    """Finds the unambiguous relations between boxes.

    Args:
      boxes: int [N, 4], x1 y1 x2 y2 in pixels.

    Returns:
      The relations, in both directions.
    """
    centres = ((boxes[:, :2] + boxes[:, 2:]) / 2).tolist()
    relations = []
    for (i, (xi, yi)), (j, (xj, yj)) in itertools.permutations(enumerate(centres), 2):
        dx = xj - xi
        dy = yj - yi
        if abs(dx) >= max(CLEAR_OFFSET, CLEAR_RATIO * abs(dy)):
            relations.append(Relation(i, 'left of' if dx > 0 else 'right of', j))
        elif abs(dy) >= max(CLEAR_OFFSET, CLEAR_RATIO * abs(dx)):
            relations.append(Relation(i, 'above' if dy > 0 else 'below', j))
    return tuple(relations)


def find_groups(objects: Sequence[Object]) -> list[tuple[Phrase, tuple[int, ...]]]:
    """Finds the groups of objects with the same color or shape: the phrase of each group, and its members."""
    members = collections.defaultdict(list)
    for i, thing in enumerate(objects):
        members[Phrase(colour=thing.colour)].append(i)
        members[Phrase(shape=thing.shape)].append(i)
    return [(phrase._replace(count=len(m)), tuple(m)) for phrase, m in members.items() if len(m) > 1]


def holds(statement: Statement, graph: SceneGraph) -> bool:
    """Returns whether a statement is true of a scene.

    It is true if the phrases can refer to different objects whose relations are in the graph.

    Args:
      statement: The statement.
      graph: The scene graph.
    """
    if statement.total not in (None, len(graph.objects)):
        return False
    relations = set(graph.relations)
    for choice in itertools.product(*(_referents(phrase, graph.objects) for phrase in statement.phrases)):
        mentioned = [*itertools.chain.from_iterable(choice)]
        claims = {(choice[s][0], predicate, choice[o][0]) for s, predicate, o in statement.relations}
        if len(set(mentioned)) == len(mentioned) and claims <= relations:
            return True
    return False


def _referents(phrase: Phrase, objects: Sequence[Object]) -> list[tuple[int, ...]]:
    """Returns the sets of objects that a phrase can refer to."""
    candidates = [i for i, thing in enumerate(objects) if phrase.fits(thing)]
    if phrase.count == 1:
        return [(i,) for i in candidates]
    return [tuple(candidates)] if len(candidates) == phrase.count else []
