import json
import random
import re

import numpy as np
import pytest

from jitm.data.text import word_level
from jitm.data.text.vocabularies import load_vocabulary
from jitm.data.text.word_level import SPECIAL_WORDS, Vocabulary, find_tokens, tokenize
from jitm.errors import UserError
from tests.conftest import ROOT

CAPTIONS = '../shared/data/f8k/dev_caps.txt'
SPECIAL = ['<pad>', '<start>', '<end>', '<unk>']


@pytest.mark.parametrize(
    ('caption', 'words'),
    [
        ('', []),
        ('  ', []),
        ('.', ['.']),
        ('A Man in a RED hat.', ['a', 'man', 'in', 'a', 'red', 'hat', '.']),
        ('a dog .', ['a', 'dog', '.']),
        ('red, white and blue', ['red', ',', 'white', 'and', 'blue']),
        ('a well-known, long-haired dog', ['a', 'well-known', ',', 'long-haired', 'dog']),
        ("it isn't the boy's", ['it', 'is', "n't", 'the', 'boy', "'s"]),
        ("they're in the boys' room", ['they', "'re", 'in', 'the', 'boys', "'", 'room']),
        ('she cannot see', ['she', 'can', 'not', 'see']),
        ('he is gonna jump', ['he', 'is', 'gon', 'na', 'jump']),
        ('a sign reading "stop"', ['a', 'sign', 'reading', '``', 'stop', "''"]),
        ('a sign says , " go " .', ['a', 'sign', 'says', ',', '``', 'go', '``', '.']),
        ('a dog--a cat', ['a', 'dog', '--', 'a', 'cat']),
        ('2,000 people at 3.50 $5', ['2,000', 'people', 'at', '3.50', '$', '5']),
        ('room 7, 8 and 9', ['room', '7', ',', '8', 'and', '9']),
        ('One dog. Another runs.', ['one', 'dog', '.', 'another', 'runs', '.']),
        ('Whoa! is it (really) so?', ['whoa', '!', 'is', 'it', '(', 'really', ')', 'so', '?']),
        ('he said "yes." then left.', ['he', 'said', '``', 'yes', '.', "''", 'then', 'left', '.']),
        ('Mr. Smith of the U.S. army', ['mr.', 'smith', 'of', 'the', 'u.s.', 'army']),
        ('plays for Miami U. in red', ['plays', 'for', 'miami', 'u.', 'in', 'red']),
        ('wow... a dog', ['wow', '...', 'a', 'dog']),
        ('one.\ntwo', ['one', '.', 'two']),
        ('CAFÉ table; 50% off', ['café', 'table', ';', '50', '%', 'off']),
        ('<start> a', ['<', 'start', '>', 'a']),
    ],
)
def test_words_of_a_caption(caption, words):
    assert tokenize(caption) == words


def assert_short_cut_is_exact(captions, monkeypatch):
    fast = [tokenize(caption) for caption in captions]
    monkeypatch.setattr(word_level, '_PLAIN', re.compile('(?!)'))
    assert fast == [tokenize(caption) for caption in captions]


@pytest.mark.slow
def test_short_cut_for_plain_captions_is_exact(monkeypatch):
    rng = random.Random(0)
    plain = 'cannot', 'wanna', 'gonna', 'a', 'dog', '7', ',', '.', '-'
    pieces = [*plain, "'", '"', ' ', ' ', ' ', ', ', ' .', '\t', '\u00c9']
    captions = [''.join(rng.choices(pieces, k=rng.randrange(1, 10))) for _ in range(5000)]
    assert sum(bool(word_level._PLAIN.fullmatch(caption)) for caption in captions) > 500
    assert_short_cut_is_exact(captions, monkeypatch)


@pytest.mark.needs(CAPTIONS)
def test_real_captions(monkeypatch):
    captions = (ROOT / CAPTIONS).read_text(encoding='utf-8').splitlines()
    assert len(Vocabulary.build(captions)) > 1000
    assert_short_cut_is_exact(captions, monkeypatch)


@pytest.fixture
def vocabulary():
    return Vocabulary((*SPECIAL, 'a', 'dog', '.'))


def test_vocabulary_keeps_frequent_words_in_order_of_occurrence():
    captions = ['the dog', 'A dog .', 'The cat .']
    assert Vocabulary.build(captions, min_count=1).words == (*SPECIAL, 'the', 'dog', 'a', '.', 'cat')
    assert Vocabulary.build(captions, min_count=2).words == (*SPECIAL, 'the', 'dog', '.')
    assert Vocabulary.build(['a b'] * 3 + ['a']).words == (*SPECIAL, 'a')


def test_encode_puts_start_and_end_around_the_words(vocabulary):
    np.testing.assert_array_equal(vocabulary.encode('A dog.'), np.array([1, 4, 5, 6, 2], np.int32), strict=True)
    assert vocabulary.encode('').tolist() == [1, 2]


def test_unknown_words_share_an_id(vocabulary):
    assert vocabulary.encode('a cat').tolist() == [1, 4, 3, 2]
    assert vocabulary.encode('<pad>').tolist() == [1, 3, 3, 3, 2]


def test_decode_leaves_padding_out(vocabulary):
    ids = np.append(vocabulary.encode('a big dog .'), [0, 0])
    assert vocabulary.decode(ids) == 'a <unk> dog .'


def test_hash_depends_on_words_and_order(vocabulary):
    assert vocabulary.hash == Vocabulary(vocabulary.words).hash
    assert re.fullmatch('[0-9a-f]{64}', vocabulary.hash)
    assert vocabulary.hash == '0a4f0de8e150be85c23821f923710d04cd2f0681b75ccf3b125742500d5d5120'
    others = [(*SPECIAL, 'dog', 'a', '.'), (*SPECIAL, 'a', 'dog'), (*SPECIAL, 'a', 'dog .')]
    assert len({vocabulary.hash, *(Vocabulary(words).hash for words in others)}) == 4


def test_json_round_trip(vocabulary, tmp_path):
    other = Vocabulary((*vocabulary.words, 'café', '"', '<mask>'))
    path = tmp_path / 'vocabulary.json'
    path.write_text(other.to_json(), encoding='utf-8')
    assert load_vocabulary(str(path)) == other
    assert len(other) == 10


def test_json_has_the_layout_of_published_files(vocabulary):
    fields = json.loads(vocabulary.to_json())
    assert list(fields) == ['word2idx', 'idx2word', 'idx']
    assert fields['word2idx']['dog'] == 5
    assert fields['idx2word']['5'] == 'dog'
    assert fields['idx'] == 7


def test_published_files_list_words_in_any_order():
    ids = {'dog': 4, '<unk>': 3, '<pad>': 0, '<end>': 2, '<mask>': 5, '<start>': 1}
    fields = {'word2idx': ids, 'idx2word': {str(number): word for word, number in ids.items()}, 'idx': 6}
    assert Vocabulary.from_json(json.dumps(fields), 'x').words == (*SPECIAL, 'dog', '<mask>')


def test_files_that_cannot_be_read(tmp_path):
    path = tmp_path / 'vocabulary.json'
    with pytest.raises(UserError, match=re.escape(f'{path} cannot be read (No such file or directory)')):
        load_vocabulary(str(path))
    path.write_bytes(b'{"\xff"')
    with pytest.raises(UserError, match=re.escape(f'{path}, line 1 is not UTF-8')):
        load_vocabulary(str(path))


@pytest.mark.parametrize(
    'damaged',
    [
        '',
        '{"word2idx": {',
        '[]',
        '7',
        '{}',
        '{"word2idx": [], "idx2word": {}, "idx": 0}',
        '{"word2idx": {"a": "x"}, "idx2word": {}, "idx": 0}',
        '{"word2idx": {"a": null}, "idx2word": {}, "idx": 0}',
        '{"word2idx": {"a": Infinity}, "idx2word": {}, "idx": 0}',
    ],
)
def test_other_json(damaged):
    with pytest.raises(UserError, match=r'^v\.json is not a vocabulary in the layout'):
        Vocabulary.from_json(damaged, 'v.json')


def damaged(vocabulary, **changes):
    fields = json.loads(vocabulary.to_json())
    for key, change in changes.items():
        fields[key] = fields[key] | change if isinstance(change, dict) else change
    return json.dumps(fields)


@pytest.mark.parametrize(
    ('changes', 'found'),
    [
        ({'word2idx': {'dog': 9}}, 'has word ids other than 0 to 6'),
        ({'word2idx': {'dog': 4}}, 'has word ids other than 0 to 6'),
        ({'idx2word': {'5': 'cat'}}, 'has keys word2idx, idx2word and idx that disagree'),
        ({'idx2word': {'7': 'cat'}}, 'has keys word2idx, idx2word and idx that disagree'),
        ({'idx': 8}, 'has keys word2idx, idx2word and idx that disagree'),
    ],
)
def test_damaged_ids(vocabulary, changes, found):
    with pytest.raises(UserError, match=rf'^v\.json {found}'):
        Vocabulary.from_json(damaged(vocabulary, **changes), 'v.json')


def test_special_words_in_other_places():
    with pytest.raises(UserError, match=r'^v\.json starts with a, <pad>, <start>, <end>: ids 0 to 3 must be <pad>'):
        Vocabulary.from_json(Vocabulary(('a', *SPECIAL)).to_json(), 'v.json')


def test_unknown_words_are_named_once():
    vocabulary = Vocabulary.build(['a dog runs'], min_count=1)
    unknown = vocabulary.unknown_words('A zebra, a dog and a ZEBRA "run" \u2028 <unk>')
    assert unknown == ['zebra', ',', 'and', '``', 'run', "''", '<', 'unk', '>']
    assert vocabulary.unknown_words('a dog') == vocabulary.unknown_words('') == []


def test_offsets_are_those_of_the_words():
    vocabulary = Vocabulary((*SPECIAL_WORDS, 'a', 'dog'))
    caption = ' A dog\'s "red"  caf\u00e9 cannot \u0130stanbul e\u0301t\u00e9.'
    offsets = vocabulary.offsets(caption)
    assert offsets.shape == (len(vocabulary.encode(caption)), 2)
    words = 'A', 'dog', "'s", '"', 'red', '"', 'caf\u00e9', 'can', 'not', '\u0130stanbul', 'e\u0301t\u00e9', '.'
    assert [caption[start:stop] for start, stop in offsets] == ['', *words, '']
    assert offsets.dtype == np.int32


def test_tokens_that_are_not_of_the_caption():
    assert find_tokens('Two big dogs', ['two', '[UNK]', 'dog', 's']) == [(0, 3), (4, 7), (8, 11), (11, 12)]
    for tokens in (['two', 'dogs'], ['two', ''], ['[UNK]', 'two']):
        with pytest.raises(ValueError, match="'Two big dogs' has no token"):
            find_tokens('Two big dogs', tokens)
