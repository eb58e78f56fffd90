"""The scene graph of a caption."""

from typing import NamedTuple

Span = tuple[int, int]  # (start, stop) in characters


class Relation(NamedTuple):
    """`subject predicate object`: indices of a graph's objects, relations and objects."""

    subject: int
    predicate: int
    object: int


class CaptionGraph(NamedTuple):
    """The objects, attributes and relations of a caption, as spans of characters.

    Attributes:
      objects: mentions with their compound nouns, without attributes; the head is the last word.
      attributes: adjectives, numbers, participles, and verbs without an object.
      relations: verbs and prepositions between two mentions.
      triples: the arguments of the relations, if known.
      described: (object, attribute) as indices, if known.
    """

    objects: tuple[Span, ...] = ()
    attributes: tuple[Span, ...] = ()
    relations: tuple[Span, ...] = ()
    triples: tuple[Relation, ...] = ()
    described: tuple[tuple[int, int], ...] = ()
