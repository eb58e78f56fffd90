"""The synthetic data set: what is said of a picture is checked against sentences read anew, boxes and pixels."""

import itertools
import re

import numpy as np
import pytest

from jitm.data import scenes
from jitm.data.scenes import Phrase, Relation, Statement, drawing, grammar, graphs, parser
from jitm.errors import UserError

IMAGES = 100


@pytest.fixture(scope='module')
def dev():
    return scenes.load('dev', dev_images=IMAGES)


def boxes_in_pixels(split, image):
    return np.rint(split.boxes[image, : split.counts[image]] * drawing.PIXELS).astype(int)


# A reader of captions that shares nothing with the grammar that wrote them.

WORDS = {word: word for word in (*graphs.SIZES, *graphs.COLOURS, *graphs.SHAPES)} | {
    'little': 'small', 'tiny': 'small', 'big': 'large', 'disc': 'circle', 'box': 'square', 'rhombus': 'diamond',
    'hoop': 'ring', 'object': None, 'shape': None,
}  # fmt: skip
NUMBERS = {'two': 2, 'three': 3, 'four': 4, 'five': 5}
NOUN = 'circle|disc|square|box|triangle|diamond|rhombus|cross|ring|hoop|object|shape'
NOUN_PHRASE = re.compile(rf'\b(an?|two|three|four|five) ((?:\w+ ){{0,2}}?(?:{NOUN}))(?:s|es)?\b')
WHERE = re.compile(
    r'\b(?:(?:on the |to the )?(left of|right of)|to its (left|right)|(above|below|under|beneath)(?: it)?)(?!\w)'
)
# What each form of sentence means: N are noun phrases from left to right, W the places named; (subject, place, object).
FORMS = {
    'N is W N .': [(0, 0, 1)],
    'N can be seen W N .': [(0, 0, 1)],
    'there is N W N .': [(0, 0, 1)],
    'PIC of N W N .': [(0, 0, 1)],
    'W N there is N .': [(1, 0, 0)],
    'N with N W .': [(1, 0, 0)],
    'N is W N in PIC of N .': [(0, 0, 1)],
    'N is W N and W N .': [(0, 0, 1), (0, 1, 2)],
    'N is W N , which is W N .': [(0, 0, 1), (1, 1, 2)],
    'N is W N , and there is also N .': [(0, 0, 1)],
    'besides N , PIC shows N W N .': [(1, 0, 2)],
    'there are N , and N is W N .': [(1, 0, 2)],
    'PIC shows N , N and N .': [],
    'N and N in PIC of N .': [],
    'PIC shows N and N .': [],
    'N , one is N and another is N .': [],
    'PIC with N , N and N .': [],
    'we see N , N and N .': [],
}


def notions(words):
    return {WORDS[word] for word in words.split()}


def read(caption):
    """Returns (list of (count, set of words), relations between them, total)."""
    phrases = [(NUMBERS.get(number, 1), notions(words)) for number, words in NOUN_PHRASE.findall(caption)]
    form = NOUN_PHRASE.sub('N', caption)
    places = [''.join(found).removesuffix(' of') for found in WHERE.findall(form)]
    places = [{'under': 'below', 'beneath': 'below'}.get(place, place) for place in places]
    form = re.sub(r'\b(an?|the) (picture|image|drawing)\b', 'PIC', WHERE.sub('W', form))
    relations = [(s, places[p], o) for s, p, o in FORMS[form]]
    # `five shapes` tells how many there are in all; it comes last, or first in a sentence without relations.
    totals = [count for count, words in phrases if count > 1 and words == {None}]
    phrases = [(count, words) for count, words in phrases if count == 1 or words != {None}]
    return phrases, relations, totals[0] if totals else None


def sees(box, place, other):
    """Whether `box` lies there as seen from `other`, well apart."""
    dx = (box[0] + box[2] - other[0] - other[2]) / 2
    dy = (box[1] + box[3] - other[1] - other[3]) / 2
    along, across = (dx, dy) if place in ('left', 'right') else (dy, dx)
    forward = along if place in ('right', 'below') else -along
    return forward >= 8 and forward >= 2 * abs(across)


def is_true(caption, objects, boxes):
    phrases, relations, total = read(caption)
    if total not in (None, len(objects)):
        return False
    choices = []
    grouped = set()
    for count, words in phrases:
        fitting = [i for i, thing in enumerate(objects) if words - {None} <= set(thing)]
        if count > 1 and len(fitting) != count:
            return False
        grouped |= set(fitting) if count > 1 else set()
        choices.append(fitting if count == 1 else [-1])
    for choice in itertools.product(*choices):
        seen = all(sees(boxes[choice[s]], place, boxes[choice[o]]) for s, place, o in relations)
        if seen and len(set(choice)) == len(choice) and not grouped & set(choice):
            return True
    return False


def test_fewer_images_are_a_prefix_and_another_seed_has_others(dev):
    few = scenes.load('dev', dev_images=7)
    assert few.num_images == 7
    assert few.captions == dev.captions[:35]
    assert few.image_ids == dev.image_ids[:7]
    assert few.swaps == dev.swaps[:35]
    np.testing.assert_array_equal(few.pixels, dev.pixels[:7])
    np.testing.assert_array_equal(few.regions, dev.regions[:7])
    assert not set(scenes.load('dev', dev_images=20, seed=1).graphs) & set(dev.graphs)


def test_splits_are_disjoint(dev):
    others = [scenes.load('train', train_images=IMAGES), scenes.load('test', test_images=IMAGES)]
    for one, two in itertools.combinations([dev, *others], 2):
        assert not set(one.graphs) & set(two.graphs)
        assert not set(one.captions) & set(two.captions)
        assert not {p.tobytes() for p in one.pixels} & {p.tobytes() for p in two.pixels}


def test_layout(dev):
    assert dev.name == 'scenes/dev'
    assert dev.image_ids[17] == 'dev-000017'
    assert (dev.num_images, dev.num_texts) == (IMAGES, 5 * IMAGES)
    assert len(dev.graphs) == IMAGES
    assert len(dev.statements) == len(dev.swaps) == 5 * IMAGES
    assert (dev.pixels.shape, dev.pixels.dtype) == ((IMAGES, 64, 64, 3), np.uint8)
    assert (dev.regions.shape, dev.regions.dtype) == ((IMAGES, 5, 200), np.float32)
    assert (dev.boxes.shape, dev.boxes.dtype) == ((IMAGES, 5, 4), np.float32)
    assert dev.counts.dtype == dev.image_of_text.dtype == np.int32
    np.testing.assert_array_equal(dev.image_of_text, np.arange(5 * IMAGES) // 5)
    assert set(dev.counts) == {2, 3, 4, 5}
    assert [len(graph.objects) for graph in dev.graphs] == dev.counts.tolist()
    assert all(len(set(graph.objects)) == len(graph.objects) for graph in dev.graphs)


def test_padding_is_zero_and_features_are_in_range(dev):
    padded = np.arange(5) >= dev.counts[:, None]
    assert not dev.regions[padded].any()
    assert not dev.boxes[padded].any()
    assert dev.regions[~padded].any(axis=1).all()
    assert 0 <= dev.regions.min() < dev.regions.max() <= 1


def test_features_are_the_patch_and_the_geometry(dev):
    for image in range(IMAGES):
        for r, (x1, y1, x2, y2) in enumerate(boxes_in_pixels(dev, image)):
            size = x2 - x1
            at = ((np.arange(8) + 0.5) * size / 8).astype(int)
            patch = dev.pixels[image][np.ix_(y1 + at, x1 + at)] / 255
            geometry = np.array([x1, y1, x2, y2, (x1 + x2) / 2, (y1 + y2) / 2, size, y2 - y1]) / 64
            np.testing.assert_allclose(dev.regions[image, r], [*np.ravel(patch), *geometry], atol=1e-6)


def test_boxes_enclose_the_painted_objects_tightly(dev):
    for image, graph in enumerate(dev.graphs):
        picture = dev.pixels[image].astype(int)
        boxes = boxes_in_pixels(dev, image)
        nearest = np.full((64, 64), 'nothing', object)
        for name, colour in drawing.PALETTE.items():
            nearest[(abs(picture - colour) <= 21).all(axis=-1)] = name
        claimed = np.zeros((64, 64), bool)
        for thing, (x1, y1, x2, y2) in zip(graph.objects, boxes, strict=True):
            inside = nearest[y1:y2, x1:x2] == thing.colour
            for side in (inside[0], inside[-1], inside[:, 0], inside[:, -1]):
                assert side.any()
            assert not claimed[y1:y2, x1:x2].any()
            claimed[y1:y2, x1:x2] = True
            assert (x2 - x1 > 11) == (thing.size == 'large')
        assert (nearest[~claimed] == 'nothing').all()


def test_silhouettes_by_hand():
    def draw(shape, edge):
        return [*map(''.join, np.where(drawing.silhouette(shape, edge), '#', '.'))]

    assert draw('triangle', 6) == ['..##..', '..##..', '.####.', '.####.', '######', '######']
    assert draw('diamond', 5) == ['..#..', '.###.', '#####', '.###.', '..#..']
    assert draw('cross', 6) == ['..##..', '..##..', '######', '######', '..##..', '..##..']
    assert draw('square', 2) == ['##', '##']
    assert draw('circle', 4) == ['.##.', '####', '####', '.##.']
    assert draw('ring', 6) == ['.####.', '##..##', '#....#', '#....#', '##..##', '.####.']


def test_index_of_an_object_carries_nothing():
    split = scenes.load('train', train_images=600)
    five = split.counts == 5
    assert five.sum() > 100
    means = split.boxes[five].mean(axis=0)
    assert np.ptp(means, axis=0).max() < 0.1


def test_relations_agree_with_boxes(dev):
    for image, graph in enumerate(dev.graphs):
        boxes = boxes_in_pixels(dev, image)
        pairs = itertools.permutations(range(len(boxes)), 2)
        claims = [(i, predicate, j) for (i, j), predicate in itertools.product(pairs, graphs.INVERSE)]
        expected = {claim for claim in claims if sees(boxes[claim[0]], claim[1].removesuffix(' of'), boxes[claim[2]])}
        assert set(graph.relations) == expected
        assert len(graph.relations) == len(expected) > 0


def test_every_caption_is_true_of_its_image(dev):
    for text, image in enumerate(dev.image_of_text):
        graph = dev.graphs[image]
        assert scenes.holds(dev.statements[text], graph), dev.captions[text]
        assert is_true(dev.captions[text], graph.objects, boxes_in_pixels(dev, image)), dev.captions[text]


def test_holds_agrees_with_the_reader_on_other_images(dev):
    verdicts = []
    for text in range(dev.num_texts):
        for image in range(text % 5, 5 * IMAGES // 10, 5):
            graph = dev.graphs[image]
            truth = is_true(dev.captions[text], graph.objects, boxes_in_pixels(dev, image))
            assert scenes.holds(dev.statements[text], graph) is truth
            verdicts.append(truth)
    assert any(verdicts)
    assert not all(verdicts)


def test_statements_are_the_meaning_of_captions(dev):
    for caption, statement in zip(dev.captions, dev.statements, strict=True):
        phrases, relations, total = read(caption)
        claimed = [(phrase.count, sorted(set(phrase[:3]) - {None})) for phrase in statement.phrases]
        assert sorted(claimed) == sorted((count, sorted(words - {None})) for count, words in phrases)
        assert len(statement.relations) == len(relations)
        assert statement.total == total


def words_of(caption, spans):
    return [caption[slice(*span)] for span in spans]


def test_caption_graphs_have_the_spans_of_statements(dev):
    for caption, statement, graph in zip(dev.captions, dev.statements, dev.caption_graphs, strict=True):
        objects, attributes, places = (words_of(caption, spans) for spans in graph[:3])
        said = [[noun] for noun in objects]
        for thing, attribute in reversed(graph.described):
            said[thing].insert(0, attributes[attribute])
        mentions = [match[0] for match in NOUN_PHRASE.finditer(caption)]
        assert [' '.join(words) for words in said] == [re.sub('^an? ', '', mention) for mention in mentions]
        _, relations, _ = read(caption)
        assert len(places) == len(relations)
        for place, (_, predicate, _) in zip(places, statement.relations, strict=True):
            assert predicate.removesuffix(' of') in re.sub('under|beneath', 'below', place).split()


def test_every_swap_is_false_of_its_image(dev):
    for swaps, image in zip(dev.swaps, dev.image_of_text, strict=True):
        captions = dev.captions[5 * image : 5 * image + 5]
        boxes = boxes_in_pixels(dev, image)
        for swap in swaps:
            assert swap.kind in ('attribute', 'relation')
            assert swap.caption not in captions
            assert not is_true(swap.caption, dev.graphs[image].objects, boxes), swap.caption


def test_swaps_use_the_words_of_the_caption(dev):
    def words(caption):
        singular = re.sub(rf'({NOUN})(es|s)\b', r'\1', caption)
        return sorted(re.sub(r'\ban\b', 'a', singular).split())

    places = {'left', 'right', 'above', 'below', 'under', 'beneath', 'it', 'its', 'to'}
    for caption, swaps in zip(dev.captions, dev.swaps, strict=True):
        assert len({swap.caption for swap in swaps}) == len(swaps)
        for swap in swaps:
            if swap.kind == 'attribute':
                assert words(swap.caption) == words(caption)
            else:
                assert set(words(swap.caption)) ^ set(words(caption)) <= places


def test_swaps_are_plentiful(dev):
    kinds = [[kind for kind, _ in swaps] for swaps in dev.swaps]
    assert np.mean(['attribute' in row for row in kinds]) > 0.85
    assert np.mean(['relation' in row for row in kinds]) > 0.6
    assert np.mean([bool(row) for row in kinds]) > 0.9
    assert np.mean([row.count('relation') for row in kinds]) > 1.2


def test_captions_are_english_and_varied(dev):
    lengths = [len(caption.split()) for caption in dev.captions]
    assert min(lengths) >= 6
    assert max(lengths) <= 26
    for caption in (*dev.captions, *(swap.caption for swap in itertools.chain(*dev.swaps))):
        assert re.fullmatch(r'[a-z]+( [a-z]+| ,)* \.', caption), caption
        assert not re.search(r'\ba [aeiou]|\ban [^aeiou]', caption), caption
        assert not re.search(r'(cross|box|rhombus)s\b', caption), caption
    for image in range(IMAGES):
        assert len(set(dev.captions[5 * image : 5 * image + 5])) == 5
    assert np.mean([bool(statement.relations) for statement in dev.statements]) > 0.6
    assert len({re.sub(WHERE, 'W', NOUN_PHRASE.sub('N', caption)) for caption in dev.captions}) > 20


def test_captions_of_an_image_single_out_nearly_all_of_it(dev):
    named = []
    for image, graph in enumerate(dev.graphs):
        phrases = itertools.chain(*(read(caption)[0] for caption in dev.captions_of(image)))
        fitting = np.array([[words - {None} <= set(thing) for thing in graph.objects] for _, words in phrases])
        named += (fitting & (fitting.sum(axis=1, keepdims=True) == 1)).any(axis=0).tolist()
    assert np.mean(named) > 0.985


@pytest.mark.slow
def test_few_captions_fit_another_image_but_their_words_do():
    dev = scenes.load('dev')
    relevant = []
    same_words = []
    for statement in dev.statements[:: dev.num_texts // 200]:
        relevant.append(sum(scenes.holds(statement, graph) for graph in dev.graphs))
        words = {*itertools.chain(*(phrase[:3] for phrase in statement.phrases))} - {None}
        same_words.append(sum(words <= set(itertools.chain(*graph.objects)) for graph in dev.graphs))
    assert np.mean(np.array(relevant) > 1) < 0.25
    assert np.mean(relevant) < 2
    assert np.mean(same_words) > 10  # which words occur is not enough: they must be bound to each other


def test_other_splits_are_unknown():
    with pytest.raises(UserError, match="scenes has no split 'tset', did you mean 'test'"):
        scenes.load('tset')


# The inverse of the grammar, and false captions.


def test_every_caption_and_swap_is_parsed_back(dev):
    for text, swaps, statement, image in zip(dev.captions, dev.swaps, dev.statements, dev.image_of_text, strict=True):
        parsed = parser.read(text)
        assert parsed.statement == statement == parser.parse(text)
        assert grammar.render(*parsed)[0] == text
        for swap in swaps:
            assert grammar.render(*parser.read(swap.caption))[0] == swap.caption
            assert not graphs.holds(parser.parse(swap.caption), dev.graphs[image])


@pytest.mark.parametrize(
    ('text', 'statement'),
    [
        (
            'A big red circle is above a box.',  # capitals, punctuation without blanks
            Statement((Phrase('large', 'red', 'circle'), Phrase(shape='square')), (Relation(0, 'above', 1),)),
        ),
        (
            'a image of an red ring beneath an object .',  # a and an
            Statement((Phrase(colour='red', shape='ring'), Phrase()), (Relation(0, 'below', 1),)),
        ),
        ('', None),
        ('a red dog is above a box .', None),
        ('a red ring is above .', None),
        ('a red ring is above a box', None),
        ('two red ring and a box in a picture of three shapes .', None),
        ('two red rings and a box in a picture of three red shapes .', None),
    ],
)
def test_parsing_beyond_what_is_rendered(text, statement):
    assert parser.parse(text) == statement


@pytest.mark.slow
def test_changes_are_false_and_of_their_kind(dev):
    found = set()
    for n, (text, image) in enumerate(zip(dev.captions, dev.image_of_text, strict=True)):
        false = parser.falsify(text, dev.graphs[image], np.random.default_rng(n))
        assert false == parser.falsify(text, dev.graphs[image], np.random.default_rng(n))
        found |= {*false}
        true = parser.parse(text)
        for kind, caption in false.items():
            statement = parser.parse(caption)
            assert not graphs.holds(statement, dev.graphs[image]), (text, caption)
            changed = [a != b for a, b in itertools.zip_longest(true.phrases, statement.phrases)]
            relations = sum(a != b for a, b in zip(true.relations, statement.relations, strict=True))
            if kind.startswith('swap'):
                assert (sum(changed), relations) in ([(2, 0)] if kind == 'swap_attribute' else [(2, 0), (0, 1)])
            else:
                assert (sum(changed), relations) == ((0, 1) if kind == 'replace_relation' else (1, 0))
            assert (len(statement.phrases) > len(true.phrases)) == (kind == 'add_object')
    assert found == set(parser.KINDS)
