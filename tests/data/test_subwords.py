"""The subwords of SigLIP; the package sentencepiece and transformers have the reference."""

import json
import struct

import numpy as np
import pytest

from jitm.data.pieces import Subwords
from jitm.data.vocabularies import describe_vocabulary, kind_of, load_vocabulary, restore_vocabulary
from jitm.data.wordpiece import SPECIAL_PIECES, WordPiece
from jitm.errors import UserError

SPACE = '\u2581'
PIECES = [  # text, score, kind
    *(('<pad>', 0.0, 3), ('</s>', 0.0, 3), ('<unk>', 0.0, 2), (SPACE, -3.0, 1), (f'{SPACE}a', -2.0, 1)),
    *((f'{SPACE}dog', -2.5, 1), (f'{SPACE}do', -3.0, 1), ('g', -4.0, 1), ('s', -3.5, 1), (f'{SPACE}ball', -3.0, 1)),
    *((f'{SPACE}d', -4.0, 1), ('o', -4.5, 1), ('b', -5.0, 1), ('al', -5.0, 1)),
]


def number(value):
    """A number of a protocol buffer."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + number(value >> 7)


def field(index, value):
    """A field of a protocol buffer."""
    if isinstance(value, int):
        return number(index << 3) + number(value)
    if isinstance(value, float):
        return number(index << 3 | 5) + struct.pack('<f', value)
    return number(index << 3 | 2) + number(len(value)) + value


def write_model(path, pieces=PIECES, kind=1) -> str:
    """Writes a `.model` of the package sentencepiece."""
    content = b''.join(
        field(1, field(1, text.encode()) + field(2, score) + (field(3, kind) if kind != 1 else b''))
        for text, score, kind in pieces
    )
    path.write_bytes(content + field(2, field(3, kind) + field(4, 300)) + field(3, field(1, b'identity')))
    return str(path)


def write_bpe(path, size=300, lower=False) -> str:
    """Writes a `tokenizer.json` as that of Gemma, with a piece of each byte."""
    words = ['<pad>', '<eos>', '<bos>', '<unk>', 'a', 'd', 'o', 'g', SPACE, 'do', 'dog', f'{SPACE}dog', 'A', ',']
    words = [*words, *(f'<0x{n:02X}>' for n in range(256))][:size]
    model = {'type': 'BPE', 'dropout': None, 'unk_token': '<unk>', 'fuse_unk': True, 'byte_fallback': True}
    merges = [['d', 'o'], ['do', 'g'], [SPACE, 'dog']]
    model |= {'vocab': {word: n for n, word in enumerate(words)}, 'merges': merges}
    replace = {'type': 'Replace', 'pattern': {'String': ' '}, 'content': SPACE}
    lowercase = {'type': 'Sequence', 'normalizers': [{'type': 'Lowercase'}, replace]}
    special = {'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False, 'special': True}
    content = {
        'version': '1.0',
        'truncation': None,
        'padding': None,
        'added_tokens': [{'id': n, 'content': words[n], **special} for n in range(4)],
        'normalizer': lowercase if lower else replace,
        'pre_tokenizer': None,
        'post_processor': None,
        'decoder': {'type': 'Sequence', 'decoders': [replace | {'pattern': {'String': SPACE}, 'content': ' '}]},
        'model': model,
    }
    content['decoder']['decoders'] += [{'type': 'ByteFallback'}, {'type': 'Fuse'}]
    path.write_text(json.dumps(content))
    return str(path)


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


def test_agrees_with_transformers_on_unigrams(tmp_path):
    transformers = pytest.importorskip('transformers')
    sentencepiece = pytest.importorskip('sentencepiece')
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


def test_agrees_with_transformers_on_pieces_of_gemma(tmp_path):
    transformers = pytest.importorskip('transformers')
    path = write_bpe(tmp_path / 'tokenizer.json')
    model = json.loads((tmp_path / 'tokenizer.json').read_text())['model']
    theirs = transformers.Siglip2Tokenizer(model['vocab'], [tuple(merge) for merge in model['merges']])
    ours = Subwords.load(path)
    for caption in CAPTIONS:
        want = theirs(caption, add_special_tokens=False)['input_ids'][:63]
        assert ours.encode(caption)[:-1].tolist() == want, caption
