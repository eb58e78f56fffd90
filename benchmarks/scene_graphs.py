"""Measures the rule parser of scene graphs against gold graphs, and its speed.

    python -m benchmarks.scene_graphs --gold ../shared/data/factual_sg/dev.csv

The file has columns `caption` and `scene_graph`, the latter as `( subject , relation , object ) , ( object , is ,
attribute ) , ( object )` (FACTUAL, Li et al., 2023).
"""

import argparse
import csv
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from textblob.en import lexicon

from jitm.data import scene_graphs
from jitm.data.scene_graphs import SentenceGraph
from jitm.errors import UserError
from jitm.evaluation.discrimination.perturbations import singular

NUMBERS = {'two': '2', 'three': '3', 'four': '4', 'five': '5', 'six': '6', 'seven': '7', 'eight': '8', 'nine': '9'}
IRREGULAR = {
    'has': 'have', 'had': 'have', 'having': 'have', 'lying': 'lay', 'lies': 'lay', 'worn': 'wear', 'held': 'hold',
    'made': 'make', 'hung': 'hang', 'stood': 'stand', 'sat': 'sit', 'stuck': 'stick', 'shown': 'show', 'seen': 'see',
    'driven': 'drive', 'eaten': 'eat', 'thrown': 'throw', 'taken': 'take', 'built': 'build', 'caught': 'catch',
}  # fmt: skip


class Facts(NamedTuple):
    """What a sentence says, in base forms of its words; each once."""

    head_nouns: frozenset[str]
    attributes: frozenset[str]
    attributes_of_objects: frozenset[tuple[str, str]]
    relations: frozenset[str]
    triples: frozenset[tuple[str, str, str]]


def base_of_verb(word: str) -> str:
    """Undoes -s, -ing and -ed where that gives a verb, or at least a word, that the tagger's lexicon has."""
    ending = re.search(r'(?:ing|ed|(?<!s)s)$', word)
    if word in IRREGULAR or not ending:
        return IRREGULAR.get(word, word)
    stem = word[: ending.start()]
    stems = [stem + 'e', stem, stem[:-1], re.sub('ie?$', 'y', stem), re.sub('e$', '', stem)]
    verbs = [known for known in stems if lexicon.get(known, '').startswith('VB')]
    return next(iter([*verbs, *(known for known in stems if known in lexicon)]), stem)


def base_of_noun(phrase: str) -> str:
    """The last word of a noun phrase, in the singular."""
    return singular(phrase.split()[-1])


def base_of_relation(phrase: str) -> str:
    """Its words as if each was a verb, without articles."""
    return ' '.join(base_of_verb(word) for word in phrase.split() if word not in ('the', 'a'))


def make_facts(objects: list[str], described: list[tuple[str, str]], triples: list[tuple[str, str, str]]) -> Facts:
    """Brings to base forms; `seat of toilet` is FACTUAL's ( toilet , have , seat )."""
    described = [(base_of_noun(thing), NUMBERS.get(attribute, attribute)) for thing, attribute in described]
    triples = [(base_of_noun(s), base_of_relation(r), base_of_noun(o)) for s, r, o in triples]
    triples = [(o, 'have', s) if r == 'of' else (s, r, o) for s, r, o in triples]
    return Facts(
        head_nouns=frozenset(map(base_of_noun, objects)),
        attributes=frozenset(attribute for _, attribute in described),
        attributes_of_objects=frozenset(described),
        relations=frozenset(relation for _, relation, _ in triples),
        triples=frozenset(triples),
    )


def read_gold(text: str) -> Facts:
    """Reads the field `scene_graph`."""
    objects, described, triples = [], [], []
    for part in text.lower().strip('() ').split(') , ('):
        first, *rest = (field.strip() for field in part.split(' , '))
        objects += [first] + ([] if not rest or rest[0] == 'is' else rest[1:])
        if rest:
            fact = (first, rest[1]) if rest[0] == 'is' else (first, *rest)
            (described if rest[0] == 'is' else triples).append(fact)
    return make_facts(objects, described, triples)


def read_found(sentence: str, graph: SentenceGraph) -> Facts:
    """Puts a scene graph in words."""
    objects, attributes, relations = ([sentence[slice(*span)].lower() for span in spans] for spans in graph[:3])
    return make_facts(
        objects,
        [(objects[thing], attributes[attribute]) for thing, attribute in graph.described],
        [(objects[s], relations[r], objects[o]) for s, r, o in graph.triples],
    )


def measure(gold: Sequence[Facts], found: Sequence[Facts]) -> dict[str, tuple[float, float, int]]:
    """Precision, recall and how many are gold, of every kind of facts, over all sentences together."""
    measured = {}
    for kind in Facts._fields:
        pairs = [(getattr(one, kind), getattr(other, kind)) for one, other in zip(gold, found, strict=True)]
        right, there, said = (sum(map(len, sets)) for sets in zip(*((a & b, a, b) for a, b in pairs), strict=True))
        measured[kind] = right / max(said, 1), right / max(there, 1), there
    return measured


def read_file(path: str) -> tuple[list[str], list[Facts]]:
    """Reads sentences and their gold facts.

    Raises:
      UserError: it is missing, or not such a file.
    """
    try:
        with open(path, encoding='utf-8', newline='') as file:
            rows = [(row['caption'], read_gold(row['scene_graph'])) for row in csv.DictReader(file)]
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): give the path of gold scene graphs.') from error
    except (KeyError, ValueError, IndexError, AttributeError):
        raise UserError(f'{path} is not a CSV file with columns caption and scene_graph: give another one.') from None
    captions, gold = zip(*rows, strict=True) if rows else ((), ())
    return list(captions), list(gold)


def main() -> None:
    """Prints a line per kind of facts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--gold', required=True)
    try:
        captions, gold = read_file(parser.parse_args().gold)
    except UserError as error:
        parser.error(str(error))
    scene_graphs.parse('a dog')  # reads the lexicon
    began = time.perf_counter()
    graphs = [scene_graphs.parse(caption) for caption in captions]
    seconds = time.perf_counter() - began
    found = [read_found(caption, graph) for caption, graph in zip(captions, graphs, strict=True)]
    print(f'{"":22}precision  recall    gold')
    for kind, (precision, recall, number) in measure(gold, found).items():
        print(f'{kind.replace("_", " "):22}{precision:9.3f}{recall:8.3f}{number:8}')
    print(f'{len(captions)} sentences, {len(captions) / seconds:.0f} sentences/s')


if __name__ == '__main__':
    main()
