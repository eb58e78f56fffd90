"""The byte pairs of CLIP and the subwords of SigLIP; open_clip, sentencepiece and transformers have the references."""

import gzip
import json

import numpy as np
import pytest

from jitm.data.text.pieces import BPE, Subwords
from jitm.data.text.vocabularies import describe_vocabulary, kind_of, load_vocabulary, restore_vocabulary
from jitm.data.text.wordpiece import SPECIAL_PIECES, WordPiece
from jitm.errors import UserError
from tests.conftest import ROOT
from tests.support.pieces import PIECES, SPACE, write_bpe, write_model

PUBLISHED = '../shared/vocab/bpe_simple_vocab_16e6.txt.gz'
REAL = '../shared/data/captions/f30k_dev_caps.txt', '../shared/data/f8k/dev_caps.txt'
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
        ('merges.txt', '', r'is not the merges.txt or tokenizer.json of a CLIP \(it has no merges\)'),
        ('merges.txt', HEADER + 't h\nt h\n', "has 't h' as merge 2"),
        ('merges.txt', HEADER + 'th e\n', "has 'th e' as merge 1"),
        ('merges.txt', HEADER + 'the\n', "has 'the' as merge 1"),
        ('tokenizer.json', '{"model": {}}', r"is not the merges.txt or .* \('merges'\)"),
        ('tokenizer.json', '{', 'is not the merges.txt or tokenizer.json'),
        ('x.gz', 'no gzip', 'is not the merges.txt or .*Not a gzipped file'),
        ('x.gz', gzip.compress(b'', mtime=0)[:10] + b'\xff', 'is not the merges.txt'),  # no kind of block
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


@pytest.mark.needs(PUBLISHED)
def test_golden_ids_of_the_published_merges():
    published = load_vocabulary(str(ROOT / PUBLISHED))
    assert len(published) == 49408
    for caption, ids in (
        ('a dog runs on the grass', [49406, 320, 1929, 5586, 525, 518, 5922, 49407]),
        ('Two  men talk', [49406, 1237, 1656, 1841, 49407]),
    ):
        assert published.encode(caption).tolist() == ids


@pytest.mark.needs('open_clip', PUBLISHED, *REAL)
def test_agrees_with_open_clip():
    from open_clip.tokenizer import SimpleTokenizer

    tokenizer = SimpleTokenizer(bpe_path=str(ROOT / PUBLISHED))
    published = load_vocabulary(str(ROOT / PUBLISHED))
    lines = '\n'.join((ROOT / path).read_text(encoding='utf-8') for path in REAL).splitlines()
    for caption in [
        *lines[:3000],
        "It's  A Caf\u00e9 &amp; b\u00e4r: 20% OFF!! we'll",
        '\U0001f600\u4e2d\u6587 1st',
        '\uff21\u3000\uff0c\uff5e \ufb01ne \ufb05 \u01c4 \u0149 \u0133',
        'x' * 90,
    ]:
        assert published.encode(caption)[1:-1].tolist() == tokenizer.encode(caption)[:75], caption


# Subwords.


def texts(pieces, caption):
    return [pieces.words[n] for n in pieces.encode(caption)]


def test_unigrams_have_no_capitals_and_no_punctuation(tmp_path):
    pieces = Subwords.load(write_model(tmp_path / 'spiece.model'))
    assert texts(pieces, "A  dog's\tball_,  .") == [f'{SPACE}a', f'{SPACE}dog', 's', f'{SPACE}ball', '</s>']
    assert texts(pieces, 'dog </s>') == [f'{SPACE}dog', SPACE, 's', '</s>']
    assert texts(pieces, 'dog zz dog') == [f'{SPACE}dog', SPACE, '<unk>', f'{SPACE}dog', '</s>']
    assert pieces.unknown_words('dog zz, dog zz') == ['zz']
    assert (pieces.pad, pieces.unknown, len(pieces)) == (1, 2, len(PIECES))
    assert pieces.decode([*pieces.encode('A dog, a ball'), 1, 1]) == 'a dog a ball'
    assert pieces.encode('').tolist() == [1]
    assert pieces.encode('dog').dtype == np.int32


def test_pieces_of_gemma_are_lower_cased_and_have_every_byte(tmp_path):
    pieces = Subwords.load(write_bpe(tmp_path / 'tokenizer.json'))
    assert texts(pieces, 'A dog, a') == ['a', f'{SPACE}dog', ',', SPACE, 'a', '<eos>']
    assert texts(pieces, 'é') == ['<0xC3>', '<0xA9>', '<eos>']
    assert '<eos>' not in texts(pieces, 'dog <eos>')[:-1]
    assert (pieces.pad, pieces.unknown, pieces.unknown_words('é')) == (0, 3, [])
    assert pieces.decode([*pieces.encode('A dog é'), 0]) == 'a dog é'
    lowered = Subwords.load(write_bpe(tmp_path / 'tokenizer.json', lower=True))
    assert texts(lowered, 'A Dog') == ['a', f'{SPACE}dog', '<eos>']


def test_long_captions_are_cut_and_keep_the_end(tmp_path):
    path = write_model(tmp_path / 'spiece.model')
    assert [len(load_vocabulary(path, length).encode('a ' * 99)) for length in (None, 16)] == [64, 16]
    pieces = Subwords.load(path, 4)
    assert texts(pieces, 'a dog a dog') == [f'{SPACE}a', f'{SPACE}dog', f'{SPACE}a', '</s>']
    assert pieces.hash != load_vocabulary(path).hash


def test_a_run_restores_its_pieces(tmp_path):
    word_pieces = WordPiece.of((*SPECIAL_PIECES, 'a', '##b'))
    paths = write_model(tmp_path / 'spiece.model'), write_bpe(tmp_path / 'tokenizer.json')
    for kind, pieces in (('word pieces', word_pieces), *(('subwords', load_vocabulary(path)) for path in paths)):
        description = json.loads(json.dumps(describe_vocabulary(pieces)))
        restored = restore_vocabulary(description)
        assert (restored, restored.hash, kind_of(restored)) == (pieces, pieces.hash, kind)
        with pytest.raises(ValueError, match='it is no tokenizer'):
            restore_vocabulary(description | {'definition': ['{}']})
    with pytest.raises(UserError, match='the pieces of SigLIP have no mask'):
        restored.with_mask()


def test_other_files_are_refused(tmp_path):
    path = tmp_path / 'spiece.model'
    with pytest.raises(UserError, match=r'spiece.model cannot be read \(No such file'):
        load_vocabulary(str(path))
    for content in (b'', b'\x0a\xff', b'{}', b'\x0b\x01', write_and_read(path)[:-5] + b'\xff'):
        path.write_bytes(content)
        with pytest.raises(UserError, match='is not the tokenizer of a SigLIP'):
            load_vocabulary(str(path))
    write_model(path, kind=2)
    with pytest.raises(UserError, match=r'is not the tokenizer of a SigLIP \(no unigram model\)'):
        load_vocabulary(str(path))
    write_model(path, PIECES[2:])
    with pytest.raises(UserError, match=f"has '{SPACE}' as piece 1, not the end"):
        load_vocabulary(str(path))
    (tmp_path / 'tokenizer.json').write_text('{"model": {"type": "Unigram"}}')
    with pytest.raises(UserError, match=r'tokenizer.json is not the tokenizer of a SigLIP'):
        load_vocabulary(str(tmp_path / 'tokenizer.json'))


def write_and_read(path) -> bytes:
    write_model(path)
    return path.read_bytes()


CAPTIONS = [
    *('A dog runs.', 'Two dogs -- a black one, a white one -- play with a ball!', 'the man in the red shirt (left)'),
    *(
        'a ½-full glass',
        'CAFÉ ﬁ \uff21\uff22',
        '日本 dog',
        "it's 7:30pm @ noon_time",
        'tab\tand\nline',
        '',
        '  ',
        'a' * 300,
    ),
]


@pytest.mark.needs('transformers', 'sentencepiece')
def test_agrees_with_transformers_on_unigrams(tmp_path):
    import sentencepiece
    import transformers

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([caption.lower() for caption in CAPTIONS * 20]),
        model_prefix=str(tmp_path / 'spiece'),
        vocab_size=60,
        hard_vocab_limit=False,
        **{'pad_id': 0, 'eos_id': 1, 'unk_id': 2, 'bos_id': -1, 'minloglevel': 2},
    )
    theirs = transformers.SiglipTokenizer(str(tmp_path / 'spiece.model'))
    ours = Subwords.load(str(tmp_path / 'spiece.model'))
    assert (len(ours), ours.unknown) == (theirs.vocab_size, theirs.unk_token_id)
    for caption in CAPTIONS:
        assert ours.encode(caption).tolist() == theirs(caption, truncation=True, max_length=64)['input_ids'], caption


@pytest.mark.needs('transformers')
def test_agrees_with_transformers_on_pieces_of_gemma(tmp_path):
    import transformers

    path = write_bpe(tmp_path / 'tokenizer.json')
    model = json.loads((tmp_path / 'tokenizer.json').read_text())['model']
    theirs = transformers.Siglip2Tokenizer(model['vocab'], [tuple(merge) for merge in model['merges']])
    ours = Subwords.load(path)
    for caption in CAPTIONS:
        want = theirs(caption, add_special_tokens=False)['input_ids'][:63]
        assert ours.encode(caption)[:-1].tolist() == want, caption
