import importlib
import json
import re

import numpy as np
import pytest

from jitm.data.text.blip_pieces import BLIP_PIECES, of_blip
from jitm.data.text.vocabularies import load_vocabulary, tokenize_split
from jitm.data.text.word_level import Vocabulary
from jitm.data.text.wordpiece import WordPiece
from jitm.errors import UserError
from tests.conftest import ROOT

PUBLISHED = '../shared/vocab/bert-base-uncased-vocab.txt'
CAPTIONS = '../shared/data/f8k/dev_caps.txt'

NASTY = [
    '',
    '  \t ',
    'A Man in a RED hat.',
    "it isn't the boys' well-known U.S. flag!?",
    'CAFÉ naïve Ångström e\u0301 \u01c5 İstanbul Straße',
    'unaffable skateboarders snowboarding',
    '我 看見 two狗 人',
    'zero\u200bwidth\u00adhyphen\x00nul\ufffdbad\u2028line',
    'no\u00a0break\u3000wide\r\nnew\tline',
    '“quoted” \u2013 em—dash … 50% $5 #1 a_b ~x^ `y`',
    '👍🏽 smile 😀dog ∑ ½ ²',
    'x' * 100 + ' ' + 'y' * 101,
    'กขค हिन्दी שָׁלוֹם ﬁne ǆ',
    '##ing a ## b',
]

SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')


@pytest.fixture
def pieces():
    return WordPiece.of((*SPECIAL, 'a', 'dog', '##s', 'cafe', '.', '[', ']', 'un', '##do', '##g', '狗'))


@pytest.fixture(scope='module')
def published():
    return WordPiece.load(str(ROOT / PUBLISHED))


@pytest.mark.parametrize(
    ('caption', 'words'),
    [
        ('', []),
        ('A dog.', ['a', 'dog', '.']),
        ('dogs', ['dog', '##s']),
        ('undog undo', ['un', '##do', '##g', 'un', '##do']),
        ('undone', ['[UNK]']),
        ('Café CAFE\u0301', ['cafe', 'cafe']),
        ('a狗a', ['a', '狗', 'a']),
        ('a\x00 do\ufffdg\ta', ['a', 'dog', 'a']),
        ('[a]', ['[', 'a', ']']),
        ('dog' + 's' * 97, ['dog'] + ['##s'] * 97),
        ('dog' + 's' * 98, ['[UNK]']),
    ],
)
def test_pieces_of_a_caption(pieces, caption, words):
    ids = [pieces.words.index(word) for word in ('[CLS]', *words, '[SEP]')]
    np.testing.assert_array_equal(pieces.encode(caption), np.array(ids, np.int32), strict=True)


def test_pieces_with_capitals_keep_capitals_and_accents():
    cased = WordPiece.of((*SPECIAL, 'A', 'a', 'dog', 'Caf\u00e9', 'cafe'))
    assert [cased.words[i] for i in cased.encode('A dog a Caf\u00e9 cafe Dog')[1:-1]] == [
        'A', 'dog', 'a', 'Caf\u00e9', 'cafe', '[UNK]',
    ]  # fmt: skip


def cleaned_for_blip(caption):
    """As released: without some punctuation, at most 30 words."""
    caption = re.sub(r'\s{2,}', ' ', re.sub(r'[.!"()*#:;~]', ' ', caption.lower())).rstrip('\n').strip(' ')
    return ' '.join(caption.split(' ')[:30])


@pytest.mark.parametrize('file', [None, pytest.param(CAPTIONS, marks=pytest.mark.needs(CAPTIONS))])
@pytest.mark.needs(PUBLISHED)
def test_captions_of_a_blip(published, file):
    """Those of BERT after cleaning; at most 35 ids, of which the last is the end."""
    captions = [*NASTY, 'A (red) dog; ' * 20, 'a, ' * 40, 'a ' * 29 + 'dogs']
    if file:
        captions = (ROOT / file).read_text().splitlines()
    blip = of_blip(published.words)
    assert (len(published), len(blip)) == (30522, 30524)
    for caption in captions:
        ids = published.encode(cleaned_for_blip(caption))
        wanted = [*ids[:34], ids[-1]] if len(ids) > 35 else ids
        np.testing.assert_array_equal(blip.encode(caption), wanted, err_msg=caption)
    assert blip.hash != published.hash


def test_pieces_of_a_blip_are_known_by_the_last_lines_of_the_file(tmp_path, pieces):
    (tmp_path / 'vocab.txt').write_text('\n'.join((*pieces.words, *BLIP_PIECES)) + '\n')
    blip = load_vocabulary(str(tmp_path / 'vocab.txt'))
    assert [blip.words[i] for i in blip.encode('A dog. [a]')] == ['[CLS]', 'a', 'dog', '[', 'a', ']', '[SEP]']


def test_unknown_words_have_no_pieces(pieces):
    unknown = pieces.unknown_words('Undogs a Zebra, dog zebra \N{DOG FACE} zebra')
    assert unknown == ['Zebra', ',', 'zebra', '\N{DOG FACE}']
    assert pieces.unknown_words('a dog.') == []


def test_offsets_are_those_of_the_pieces(pieces):
    caption = ' A  Undog, Cafe\u0301 xyz.'
    offsets = pieces.offsets(caption)
    assert offsets.shape == (len(pieces.encode(caption)), 2)
    assert offsets.dtype == np.int32
    said = ['', 'A', 'Un', 'do', 'g', ',', 'Cafe', 'xyz', '.', '']
    assert [caption[start:stop] for start, stop in offsets] == said
    assert offsets[[0, -1]].tolist() == [[0, 0], [0, 0]]


def test_where_words_of_text_begin(pieces):
    assert pieces.first_word == 5
    assert WordPiece.of(('[PAD]', 'x', '[MASK]', '[SEP]', '[CLS]', '[UNK]', '[unused]', '!', 'a')).first_word == 7


@pytest.mark.parametrize('name', SPECIAL)
def test_names_of_special_pieces_are_text(pieces, name):
    """`[`, a word nobody knows, `]`."""
    assert pieces.encode(f'a {name}').tolist() == [2, 5, 10, 1, 11, 3]


def test_decode_puts_words_together(pieces):
    ids = np.append(pieces.encode('Dogs undog cats .'), [0, 0])
    assert pieces.decode(ids) == 'dogs undog [UNK] .'


@pytest.mark.needs(PUBLISHED)
def test_published_ids(published):
    assert len(published) == 30522
    ids = {'[PAD]': 0, '[UNK]': 100, '[CLS]': 101, '[SEP]': 102, '[MASK]': 103, '!': 999}
    assert {piece: published.words.index(piece) for piece in ids} == ids
    words = [published.words[i] for i in published.encode('Two unaffable CAFÉ-goers play.')]
    assert words == ['[CLS]', 'two', 'una', '##ffa', '##ble', 'cafe', '-', 'go', '##ers', 'play', '.', '[SEP]']
    assert published.encode('a man').tolist() == [101, 1037, 2158, 102]


@pytest.mark.needs('transformers', PUBLISHED)
@pytest.mark.parametrize('kind', ['tokenization_bert_legacy.BertTokenizerLegacy', 'tokenization_bert.BertTokenizer'])
def test_ids_are_those_of_transformers(published, kind):
    """The first is written in Python, the second on the library we use as well."""
    module, name = kind.split('.')
    theirs = getattr(importlib.import_module(f'transformers.models.bert.{module}'), name)(str(ROOT / PUBLISHED))
    assert len(theirs) == 30522
    for caption in NASTY:
        assert published.encode(caption).tolist() == theirs.encode(caption), caption


@pytest.mark.needs(PUBLISHED, CAPTIONS)
def test_real_captions(published):
    captions = tuple((ROOT / CAPTIONS).read_text(encoding='utf-8').splitlines())
    tokens = tokenize_split(captions, published)
    assert tokens.ids.dtype == np.int32
    assert tokens.lengths.max() < 64
    # The only character it does not know is a damaged one.
    assert np.mean(tokens.ids == 100) < 1e-4
    assert published.decode(tokens.ids[: tokens.starts[1]]) == ' '.join(re.findall(r'\w+|[^\w\s]', captions[0].lower()))


def test_load_reads_a_line_per_piece(pieces, tmp_path):
    path = tmp_path / 'vocab.txt'
    text = '\n'.join((*pieces.words, 'a\u2028b', '\u00a0'))
    for ending in ('', '\n'):
        path.write_text(text + ending, encoding='utf-8')
        assert WordPiece.load(str(path)).words == (*pieces.words, 'a\u2028b', '\u00a0')
    path.write_bytes(text.replace('\n', '\r\n').encode())
    assert WordPiece.load(str(path)).words == (*pieces.words, 'a\u2028b', '\u00a0')


def test_hash_depends_on_pieces_order_and_kind(pieces):
    words = pieces.words
    assert re.fullmatch('[0-9a-f]{64}', pieces.hash)
    others = {WordPiece.of(words[:-1]).hash, WordPiece.of((*words[:-2], *words[:-3:-1])).hash, Vocabulary(words).hash}
    assert len({pieces.hash, *others}) == 4


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (None, 'cannot be read (No such file or directory): give the vocab.txt of a BERT'),
        (b'\xff\xfe', "is not the vocab.txt of a BERT ('utf-8' codec can't decode"),
        ('[PAD]\n[UNK]\n[CLS]\na\n', 'is not the vocab.txt of a BERT (it lacks [SEP]): give another file'),
        ('{"word2idx": {}}', 'is not the vocab.txt of a BERT (it lacks [PAD], [UNK], [CLS], [SEP])'),
        ('a\n[UNK]\n[CLS]\n[SEP]\n[PAD]\n', '(it has [PAD] at line 5, but padding is 0: it must be line 1)'),
        ('[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\na\nb\n', "is not the vocab.txt of a BERT (it has 'a' twice)"),
    ],
)
def test_files_that_are_no_vocabulary(tmp_path, text, message):
    path = tmp_path / 'vocab.txt'
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=re.escape(str(path)) + '.*' + re.escape(message)):
        WordPiece.load(str(path))


def test_a_tokenizer_json_has_the_same_pieces(tmp_path, pieces):
    path = tmp_path / 'tokenizer.json'
    ids = {word: number for number, word in enumerate(pieces.words)}
    model = {'type': 'WordPiece', 'vocab': dict(reversed(ids.items()))}
    path.write_text(json.dumps({'normalizer': {'type': 'BertNormalizer', 'lowercase': True}, 'model': model}))
    assert load_vocabulary(str(path)) == pieces
    for content, message in (
        ({'normalizer': {'lowercase': False}, 'model': model}, 'pieces are not of cased text, but lowercase is False'),
        ({'model': model | {'vocab': ids | {'x': 99}}}, 'its ids have gaps'),
        ({'model': {'type': 'WordPiece'}}, "'vocab'"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(UserError, match=rf'tokenizer.json is not the vocab.txt of a BERT \(.*{message}'):
            load_vocabulary(str(path))
