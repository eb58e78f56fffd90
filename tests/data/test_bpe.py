import gzip
import json

import numpy as np
import pytest

from jitm.data.pieces import BPE
from jitm.data.vocabularies import describe_vocabulary, load_vocabulary, restore_vocabulary
from jitm.errors import UserError
from tests.conftest import SHARED

PUBLISHED = SHARED / 'vocab' / 'bpe_simple_vocab_16e6.txt.gz'
needs_published = pytest.mark.skipif(not PUBLISHED.is_file(), reason='needs the merges in ../shared/vocab')
MERGES = ('t h', 'th e</w>', 'd o', 'do g', 'g s</w>')
HEADER = '#version: 0.2\n'


@pytest.fixture
def pieces():
    return BPE.of(MERGES)


@pytest.mark.parametrize(
    ('caption', 'words'),
    [
        ('', []),
        ('The dogs', ['the</w>', 'dog', 's</w>']),
        ("  the\tdog's ", ['the</w>', 'do', 'g</w>', "'", 's</w>']),
        ('dog42', ['do', 'g</w>', '4</w>', '2</w>']),
        ('&lt;d&amp;gt;', ['<</w>', 'd</w>', '></w>']),
        ('e\u0301', ['Ã', '©</w>']),
        ('É', ['Ã', '©</w>']),
        ('ΑΣ', ['Î', '±', 'Ï', 'Ĥ</w>']),  # the sigma at the end of a word, as Python lower-cases it
        ('a\u00a0b', ['a</w>', 'b</w>']),
        ('\uff34\uff28\uff25\u3000\uff0c', ['the</w>', ',</w>']),
        ('\ufb01 \u0149', ['f', 'i</w>', "'</w>", 'n</w>']),
    ],
)
def test_pieces_of_a_caption(pieces, caption, words):
    got = [pieces.words[i] for i in pieces.encode(caption)]
    assert got == ['<|startoftext|>', *words, '<|endoftext|>']


def test_ids_are_in_the_published_order(pieces):
    assert len(pieces) == 512 + 5 + 2
    assert pieces.words[:3] == ('!', '"', '#')
    assert pieces.words[188] == 'Ā'  # byte 0, the first that does not stand for its own character
    assert pieces.words[256:258] == ('!</w>', '"</w>')
    assert pieces.words[512:] == ('th', 'the</w>', 'do', 'dog', 'gs</w>', '<|startoftext|>', '<|endoftext|>')
    assert pieces.encode('the').tolist() == [517, 513, 518]
    assert pieces.encode('the').dtype == np.int32


@pytest.mark.parametrize('length', [77, 248, 32])
def test_long_captions_are_cut(tmp_path, length):
    (tmp_path / 'merges.txt').write_text(HEADER + '\n'.join(MERGES))
    pieces = load_vocabulary(str(tmp_path / 'merges.txt'), None if length == 77 else length)
    assert pieces.encode('the ' * 300).tolist() == [517, *[513] * (length - 2), 518]
    restored = restore_vocabulary(json.loads(json.dumps(describe_vocabulary(pieces))))
    assert (restored, restored.hash) == (pieces, pieces.hash)
    assert (pieces.hash == BPE.of(MERGES).hash) == (length == 77)
    assert pieces.hash != BPE.of(MERGES[:-1], length).hash


@pytest.mark.parametrize('caption', ['the dogs', 'caf\u00e9 \u4e2d\u6587 the', '1 2 !'])
def test_decode_joins_the_pieces(pieces, caption):
    assert pieces.decode(pieces.encode(caption)) == caption


def test_every_file_gives_the_same_pieces(tmp_path, pieces):
    text = HEADER + '\n'.join(MERGES) + '\n'
    (tmp_path / 'merges.txt').write_text(text, encoding='utf-8')
    (tmp_path / 'bpe.txt.gz').write_bytes(gzip.compress(text.encode()))
    as_pairs = [merge.split(' ') for merge in MERGES]
    for name, merges in (('tokenizer.json', list(MERGES)), ('new_tokenizer.json', as_pairs)):
        (tmp_path / name).write_text(json.dumps({'model': {'merges': merges}}))
    for name in ('merges.txt', 'bpe.txt.gz', 'tokenizer.json', 'new_tokenizer.json'):
        assert load_vocabulary(str(tmp_path / name)) == pieces, name


@pytest.mark.parametrize(
    ('name', 'content', 'message'),
    [
        ('merges.txt', None, r'cannot be read \(No such file'),
        ('merges.txt', '', 'has no merges'),
        ('merges.txt', HEADER + 't h\nt h\n', "has 't h' as merge 2"),
        ('merges.txt', HEADER + 'th e\n', "has 'th e' as merge 1"),
        ('merges.txt', HEADER + 'the\n', "has 'the' as merge 1"),
        ('tokenizer.json', '{"model": {}}', 'has no merges'),
        ('tokenizer.json', '{', 'has no merges'),
        ('x.gz', 'no gzip', 'cannot be read'),
        ('x.gz', gzip.compress(b'', mtime=0)[:10] + b'\xff', 'cannot be read'),  # no kind of block
    ],
)
def test_damaged_files_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        load_vocabulary(str(tmp_path / name))


def test_there_is_no_mask_and_no_unknown_word(pieces):
    with pytest.raises(UserError, match='have no mask'):
        pieces.with_mask()
    assert pieces.unknown not in pieces.encode('\u4e2d\U0001f600 the')
    assert pieces.unknown_words('zzz \N{DOG FACE}') == []


@needs_published
def test_golden_ids_of_the_published_merges():
    published = load_vocabulary(str(PUBLISHED))
    assert len(published) == 49408
    for caption, ids in (
        ('a dog runs on the grass', [49406, 320, 1929, 5586, 525, 518, 5922, 49407]),
        ('Two  men talk', [49406, 1237, 1656, 1841, 49407]),
    ):
        assert published.encode(caption).tolist() == ids


@needs_published
def test_agrees_with_open_clip():
    tokenizer = pytest.importorskip('open_clip.tokenizer').SimpleTokenizer(bpe_path=str(PUBLISHED))
    published = load_vocabulary(str(PUBLISHED))
    captions = (SHARED / 'data' / 'captions' / 'f30k_dev_caps.txt', SHARED / 'data' / 'f8k' / 'dev_caps.txt')
    lines = [line for path in captions if path.is_file() for line in path.read_text(encoding='utf-8').splitlines()]
    for caption in [
        *lines[:3000],
        "It's  A Caf\u00e9 &amp; b\u00e4r: 20% OFF!! we'll",
        '\U0001f600\u4e2d\u6587 1st',
        '\uff21\u3000\uff0c\uff5e \ufb01ne \ufb05 \u01c4 \u0149 \u0133',
        'x' * 90,
    ]:
        assert published.encode(caption)[1:-1].tolist() == tokenizer.encode(caption)[:75], caption
