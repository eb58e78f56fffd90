"""Scene graphs of hand-made sentences, and of files."""

import json
import sys
import types

import numpy as np
import pytest

from jitm.data import scene_graphs, scenes
from jitm.data.load import load_scene_graphs
from jitm.data.scene_graphs import CaptionGraph
from jitm.data.splits import Split
from jitm.errors import UserError

SENTENCES = {
    'A young boy jumps off a tan rock .': (
        ['boy', 'rock'], ['young', 'tan'], ['jumps off'], ['boy young', 'rock tan'],
    ),
    'Two girls play on a skateboard in a courtyard .': (
        ['girls', 'skateboard', 'courtyard'], ['Two'], ['play on', 'in'], ['girls Two'],
    ),
    'the top is blue': (['top'], ['blue'], [], ['top blue']),
    'The bear and the dog are black and very big .': (
        ['bear', 'dog'], ['black', 'very big'], [],
        ['bear black', 'dog black', 'bear very big', 'dog very big'],
    ),
    'a light brown and white dog on top of a silver car': (
        ['dog', 'car'], ['light brown', 'white', 'silver'], ['on top of'],
        ['dog light brown', 'dog white', 'car silver'],
    ),
    'A group of people is watching 3 barking dogs next to the tennis court': (
        ['people', 'dogs', 'tennis court'], ['group of', '3', 'barking'], ['watching', 'next to'],
        ['people group of', 'dogs 3', 'dogs barking'],
    ),
    'a lot of trees': (['trees'], [], [], []),
    "a man 's t-shirt": (['man', 't-shirt'], [], [], []),
    "the dog's ears are in the bear's mouth": (
        ['dog', 'ears', 'bear', 'mouth'], [], ['in'], [],
    ),
    'A woman who is holding a cup and a spoon smiles .': (
        ['woman', 'cup', 'spoon'], ['smiles'], ['holding'],
        ['woman smiles'],
    ),
    'a man looks at a dog that chases the cat': (
        ['man', 'dog', 'cat'], [], ['looks at', 'chases'], [],
    ),
    'the dog runs and a cat sleeps': (['dog', 'cat'], ['runs', 'sleeps'], [], ['dog runs', 'cat sleeps']),
    'A man holds a cup and a woman is smiling': (
        ['man', 'cup', 'woman'], ['smiling'], ['holds'], ['woman smiling'],
    ),
    'a lady looks surprised': (['lady'], ['looks', 'surprised'], [], ['lady looks', 'lady surprised']),
    'a cup with flowers in it': (['cup', 'flowers'], [], ['with', 'in'], []),
    'A girl tries to catch a ball while another one has fallen down the stairs': (
        ['girl', 'ball', 'one', 'stairs'], ['tries'], ['catch', 'fallen down'], ['girl tries'],
    ),
    'people playing with each other': (['people'], [], ['playing with'], []),
    'people wait to board the train': (
        ['people', 'train'], ['wait'], ['board'], ['people wait'],
    ),
    '': ([], [], [], []),
    ' .,!? ': ([], [], [], []),
}  # fmt: skip


def words_of(sentence, spans):
    return [sentence[slice(*span)] for span in spans]


def read(sentence, graph):
    """A scene graph in words."""
    objects, attributes, relations = (words_of(sentence, spans) for spans in graph[:3])
    return objects, attributes, relations, [f'{objects[thing]} {attributes[a]}' for thing, a in graph.described]


def make_split(*captions, name='made'):
    count = len(captions)
    owners = np.zeros(count, np.int32)
    return Split(name, np.zeros((1, 1, 1), np.float32), np.ones(1, np.int32), captions, owners, ('image',))


@pytest.mark.parametrize('sentence', SENTENCES)
def test_rules_by_hand(sentence):
    assert read(sentence, scene_graphs.parse(sentence)) == SENTENCES[sentence]


def test_rules_do_not_depend_on_blanks_or_capitals():
    plain = 'a dog jumps over a wet log'
    spread = '  A Dog   jumps over\ta WET log '
    assert read(spread.lower(), scene_graphs.parse(spread)) == read(plain, scene_graphs.parse(plain))


def load(source, split, **keywords):
    return load_scene_graphs({'source': f'scene_graphs.{source}', **keywords}, split)


def test_sources_in_a_config():
    split = make_split(*SENTENCES)
    assert load('rules', split) == tuple(map(scene_graphs.parse, SENTENCES))
    dev = scenes.load('dev', dev_images=2)
    assert load('gold', dev) is dev.caption_graphs
    assert load_scene_graphs({'source': ''}, split) is None
    with pytest.raises(UserError, match="config key 'scene_graphs\\.path' is unknown"):
        load('rules', split, path='x')
    with pytest.raises(UserError, match="made has no gold scene graphs; use source 'scene_graphs\\.rules'"):
        load('gold', split)


def test_rules_find_the_gold_of_scenes():
    """Besides it they find the picture itself, `with`, `of a picture` and `can be seen above`."""
    dev = scenes.load('dev', dev_images=40)
    counts = np.zeros((3, 3), int)
    for caption, gold in zip(dev.captions, dev.caption_graphs, strict=True):
        found = scene_graphs.parse(caption)
        for kind in range(3):
            counts[kind] += len(set(found[kind]) & set(gold[kind])), len(found[kind]), len(gold[kind])
    precision = counts[:, 0] / counts[:, 1]
    recall = counts[:, 0] / counts[:, 2]
    assert (recall >= [0.99, 0.99, 0.7]).all()
    assert (precision >= [0.88, 0.97, 0.4]).all()


class Word(types.SimpleNamespace):
    """A token of spaCy."""

    is_space = property(lambda self: self.text.isspace())


def fake_spacy(monkeypatch, tagged, installed='fake_model'):
    """A spaCy whose one model knows the tags of one sentence."""

    def load(model, exclude):
        assert 'tagger' not in exclude
        if model != installed:
            raise OSError('no such model')
        return types.SimpleNamespace(pipe=lambda texts: map(read, texts))

    def read(text):
        return [Word(text=word, tag_=tag, idx=text.index(word)) for word, tag in tagged]

    monkeypatch.setitem(sys.modules, 'spacy', types.SimpleNamespace(load=load))


def test_spacy_tags(monkeypatch):
    tagged = [('Stick', 'NN'), ('  ', '_SP'), ('figures', 'NNS'), ('Dance', 'VBP'), ('on', 'IN'), ('it', 'PRP')]
    fake_spacy(monkeypatch, tagged)
    sentence = 'Stick  figures Dance on it'
    (graph,) = load('spacy', make_split(sentence), model='fake_model')
    assert read(sentence, graph) == (['Stick  figures'], [], ['Dance on'], [])


@pytest.mark.parametrize('installed', [True, False])
def test_spacy_says_what_to_install(monkeypatch, installed):
    fake_spacy(monkeypatch, [])
    if not installed:
        monkeypatch.setitem(sys.modules, 'spacy', None)
    message = 'require `pip install spacy` and `python -m spacy download en_core_web_sm`; otherwise use source'
    with pytest.raises(UserError, match=message):
        load('spacy', make_split('a dog'), model='en_core_web_sm')


def write(tmp_path, records):
    path = tmp_path / 'graphs.json'
    path.write_text(records if isinstance(records, str) else json.dumps(records), encoding='utf-8')
    return str(path)


def test_spans_of_a_file(tmp_path):
    spans = {'objects': [[2, 5], [18, 22]], 'attributes': [[12, 15]], 'relations': [[6, 8]]}
    records = [{'caption': 'a dog', 'objects': [], 'attributes': [], 'relations': []}]
    records.append({'caption': 'a dog in a wet blue pond', **spans, 'described': [[1, 0]]})
    first, second = load('from_file', make_split(' a dog in a wet blue pond', 'a dog'), path=write(tmp_path, records))
    assert first == CaptionGraph(((3, 6), (19, 23)), ((13, 16),), ((7, 9),), ((1, 0),))
    assert second == CaptionGraph()


def test_tree_of_a_file(tmp_path):
    tree = {
        'node': [{'ids': [2, 3]}, {'ids': None}, {'ids': []}, {'ids': [9]}],
        'attribute': [{'ids': [1]}],
        'relation': [{'ids': [4, 6]}],
    }
    sentence = 'A wet SNOWBOARDER sits calmly on caf\u00e9 "xyzzy" chairs.'
    for mark in ('##{}', '@@{}', '{}@@'):
        pieces = ['snow', mark.format('boarder')] if mark[0] != '{' else ['snow@@', 'boarder']
        tokens = ['a', 'wet', *pieces, 'sits', 'calmly', 'on', 'cafe', '"', '[UNK]', '"', 'chairs', '.']
        record = {'caption': sentence, 'tokens': tokens, 'tree': tree}
        (graph,) = load('from_file', make_split(sentence), path=write(tmp_path, [record]))
        assert read(sentence, graph)[:3] == (['SNOWBOARDER', 'xyzzy'], ['wet'], ['sits calmly on'])


@pytest.mark.parametrize(
    ('records', 'message'),
    [
        ('[', "is not a JSON list of records with a 'caption': write it again"),
        ({'caption': 'a dog'}, 'is not a JSON list of records'),
        ([{'sentence': 'a dog'}], 'is not a JSON list of records'),
        ([{'caption': 'a cat'}], "has no record for text 0 of made, 'a dog': add it"),
        ([{'caption': 'a dog', 'objects': []}], "no spans within the caption, or not its tokens, for 'a dog': write"),
        ([{'objects': [[2, 6]]}], 'no spans within'),
        ([{'objects': [[2, 2]]}], 'no spans within'),
        ([{'objects': [[-1, 2]]}], 'no spans within'),
        ([{'objects': [2]}], 'no spans within'),
        ([{'objects': [[2, 5]], 'described': [[0, 0]]}], 'no spans within'),
        ([{'objects': [[2, 5]], 'described': [[0]]}], 'no spans within'),
        ([{'tokens': ['a', 'cat'], 'tree': {'node': [], 'attribute': [], 'relation': []}}], 'or not its tokens'),
        (
            [{'tokens': ['a', 'dog'], 'tree': {'node': [{'ids': [2]}], 'attribute': [], 'relation': []}}],
            'or not its tokens',
        ),
        (
            [{'tokens': ['a', 'dog'], 'tree': {'node': [{'ids': [-1]}], 'attribute': [], 'relation': []}}],
            'or not its tokens',
        ),
    ],
)
def test_files_without_usable_graphs(tmp_path, records, message):
    if isinstance(records, list) and not records[0].keys() & {'caption', 'sentence'}:
        records = [{'caption': 'a dog', 'objects': [], 'attributes': [], 'relations': [], **records[0]}]
    path = write(tmp_path, records)
    with pytest.raises(UserError, match=message) as error:
        load('from_file', make_split('a dog'), path=path)
    assert path in str(error.value)


def test_file_that_is_missing(tmp_path):
    with pytest.raises(UserError, match=r'cannot be read \(No such file or directory\): give the path of scene graphs'):
        load('from_file', make_split('a dog'), path=str(tmp_path / 'none.json'))
