"""The scene graph of a sentence."""

from typing import NamedTuple

Span = tuple[int, int]  # first character, and the one after the last


class Relation(NamedTuple):
    """`subject predicate object`: positions in a graph's objects, relations, objects."""

    subject: int
    predicate: int
    object: int


class SentenceGraph(NamedTuple):
    """What a sentence says, as the characters where it says it.

    Attributes:
      objects: a span for each mention, its compound nouns included, its attributes not; the head is the last word.
      attributes: adjectives, numbers, participles, and verbs without an object.
      relations: verbs and prepositions between two mentions.
      triples: where known, what a relation relates.
      described: where known, (object, attribute), as positions in these.
    """

    objects: tuple[Span, ...] = ()
    attributes: tuple[Span, ...] = ()
    relations: tuple[Span, ...] = ()
    triples: tuple[Relation, ...] = ()
    described: tuple[tuple[int, int], ...] = ()
