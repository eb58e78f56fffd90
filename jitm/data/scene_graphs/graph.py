"""The scene graph of a caption."""

from typing import NamedTuple

Span = tuple[int, int]  # (start, stop) in characters


class CaptionGraph(NamedTuple):
    """The objects, attributes and relations of a caption, as spans of characters.

    Attributes:
      objects: Mentions with their compound nouns, without attributes; the head is the last word.
      attributes: Adjectives, numbers, participles, and verbs without an object.
      relations: Verbs and prepositions between two mentions.
      described: Pairs (object, attribute) of indices, if known.
    """

    objects: tuple[Span, ...] = ()
    attributes: tuple[Span, ...] = ()
    relations: tuple[Span, ...] = ()
    described: tuple[tuple[int, int], ...] = ()
