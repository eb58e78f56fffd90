"""Measures the accuracy of the rule-based scene graph parser against gold graphs, and its speed.

    python -m benchmarks scene_graphs --gold data/factual_sg/dev.csv

The file has columns `caption` and `scene_graph`, the latter formatted as `( subject , relation , object ) , ( object ,
is , attribute ) , ( object )` (FACTUAL: Li et al., 2023).
"""

import argparse
import csv
import re
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from textblob.en import lexicon

from benchmarks.results import Row
from jitm.data import scene_graphs
from jitm.data.pairs.caption_rules import singular
from jitm.data.scene_graphs import CaptionGraph
from jitm.errors import UserError

NUMBERS = {'two': '2', 'three': '3', 'four': '4', 'five': '5', 'six': '6', 'seven': '7', 'eight': '8', 'nine': '9'}
IRREGULAR = {
    'has': 'have', 'had': 'have', 'having': 'have', 'lying': 'lay', 'lies': 'lay', 'worn': 'wear', 'held': 'hold',
    'made': 'make', 'hung': 'hang', 'stood': 'stand', 'sat': 'sit', 'stuck': 'stick', 'shown': 'show', 'seen': 'see',
    'driven': 'drive', 'eaten': 'eat', 'thrown': 'throw', 'taken': 'take', 'built': 'build', 'caught': 'catch',
}  # fmt: skip


class Facts(NamedTuple):
    """The distinct facts of a caption, in base forms of its words."""

    head_nouns: frozenset[str]
    attributes: frozenset[str]
    attributes_of_objects: frozenset[tuple[str, str]]
    relations: frozenset[str]


def base_of_verb(word: str) -> str:
    """Removes -s, -ing and -ed if the result is a verb, or at least a word, of the tagger's lexicon."""
    ending = re.search(r'(?:ing|ed|(?<!s)s)$', word)
    if word in IRREGULAR or not ending:
        return IRREGULAR.get(word, word)
    stem = word[: ending.start()]
    stems = [stem + 'e', stem, stem[:-1], re.sub('ie?$', 'y', stem), re.sub('e$', '', stem)]
    verbs = [entry for entry in stems if lexicon.get(entry, '').startswith('VB')]
    return next(iter([*verbs, *(entry for entry in stems if entry in lexicon)]), stem)


def base_of_noun(phrase: str) -> str:
    """Returns the singular of the last word of a noun phrase."""
    return singular(phrase.split()[-1])


def base_of_relation(phrase: str) -> str:
    """Returns the base forms of the words of a relation, taken as verbs, without articles."""
    return ' '.join(base_of_verb(word) for word in phrase.split() if word not in ('the', 'a'))


def make_facts(objects: list[str], described: list[tuple[str, str]], relations: list[str]) -> Facts:
    """Converts words to base forms; `seat of toilet` is ( toilet , have , seat ) in FACTUAL."""
    described = [(base_of_noun(thing), NUMBERS.get(attribute, attribute)) for thing, attribute in described]
    relations = [base_of_relation(relation) for relation in relations]
    return Facts(
        head_nouns=frozenset(map(base_of_noun, objects)),
        attributes=frozenset(attribute for _, attribute in described),
        attributes_of_objects=frozenset(described),
        relations=frozenset('have' if relation == 'of' else relation for relation in relations),
    )


def read_gold(text: str) -> Facts:
    """Parses the field `scene_graph`."""
    objects, described, relations = [], [], []
    for part in text.lower().strip('() ').split(') , ('):
        first, *fields = (field.strip() for field in part.split(' , '))
        objects += [first] + ([] if not fields or fields[0] == 'is' else fields[1:])
        if fields and fields[0] == 'is':
            described.append((first, fields[1]))
        elif fields:
            relations.append(fields[0])
    return make_facts(objects, described, relations)


def read_parsed(caption: str, graph: CaptionGraph) -> Facts:
    """Returns the facts of a parsed scene graph."""
    objects, attributes, relations = ([caption[slice(*span)].lower() for span in spans] for spans in graph[:3])
    return make_facts(
        objects,
        [(objects[thing], attributes[attribute]) for thing, attribute in graph.described],
        relations,
    )


def measure(gold: Sequence[Facts], parsed: Sequence[Facts]) -> dict[str, tuple[float, float, int]]:
    """Returns precision, recall and the number of gold facts, for every kind of facts over all captions."""
    measured = {}
    for kind in Facts._fields:
        pairs = [
            (getattr(graph, kind), getattr(parsed_graph, kind))
            for graph, parsed_graph in zip(gold, parsed, strict=True)
        ]
        right, in_gold, in_parsed = (
            sum(map(len, sets)) for sets in zip(*((a & b, a, b) for a, b in pairs), strict=True)
        )
        measured[kind] = right / max(in_parsed, 1), right / max(in_gold, 1), in_gold
    return measured


def read_file(path: str) -> tuple[list[str], list[Facts]]:
    """Reads captions and their gold facts.

    Raises:
      UserError: If the file is missing or has another format.
    """
    try:
        with open(path, encoding='utf-8', newline='') as file:
            rows = [(row['caption'], read_gold(row['scene_graph'])) for row in csv.DictReader(file)]
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): give the path of gold scene graphs') from error
    except (KeyError, ValueError, IndexError, AttributeError):
        raise UserError(f'{path} is not a CSV file with columns caption and scene_graph: give another one') from None
    captions, gold = zip(*rows, strict=True) if rows else ((), ())
    return list(captions), list(gold)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--gold', required=True)


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Measures each kind of facts."""
    captions, gold = read_file(args.gold)
    scene_graphs.parse('a dog')  # loads the lexicon
    start = time.perf_counter()
    graphs = [scene_graphs.parse(caption) for caption in captions]
    speed = len(captions) / (time.perf_counter() - start)
    parsed = [read_parsed(caption, graph) for caption, graph in zip(captions, graphs, strict=True)]
    for kind, (precision, recall, number) in measure(gold, parsed).items():
        row = {'facts': kind.replace('_', ' '), 'precision': precision, 'recall': recall, 'gold': number}
        yield row | {'captions/s': speed}
