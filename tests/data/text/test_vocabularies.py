import collections
import json
import os
import pickle
import re
import sys
import types

import pytest

from jitm.data.text.vocabularies import load_vocabulary
from jitm.data.text.word_level import Vocabulary
from jitm.errors import UserError

WORDS = ('<pad>', '<start>', '<end>', '<unk>', 'dog', 'a', 'caf')


@pytest.fixture(params=['vocab', '__main__'])
def published(request, monkeypatch):
    """An object of the class that the authors' scripts define."""
    kind = type('Vocabulary', (), {'__module__': request.param})
    module = sys.modules.get(request.param, types.ModuleType(request.param))
    monkeypatch.setitem(sys.modules, request.param, module)
    monkeypatch.setattr(module, 'Vocabulary', kind, raising=False)
    made = kind()
    made.word2idx = {word: number for number, word in enumerate(WORDS)}
    made.idx2word = dict(enumerate(WORDS))
    made.idx = len(WORDS)
    return made


@pytest.mark.parametrize('protocol', [2, pickle.HIGHEST_PROTOCOL])
def test_words_are_read(tmp_path, published, protocol):
    path = tmp_path / 'f30k_precomp_vocab.pkl'
    path.write_bytes(pickle.dumps(published, protocol))
    assert load_vocabulary(str(path)) == Vocabulary(WORDS)


PYTHON_2 = {  # how it was pickled -> the pickle of the words of `CAFE`, by Python 2.7
    'protocol 0, bytes': b''
    b'ccopy_reg\n_reconstructor\np0\n(clib.vocab\nVocabulary\np1\nc__builtin__\nobject\np2\nNtp3\nRp4\n'
    b"(dp5\nS'idx2word'\np6\n(dp7\nI0\nS'<pad>'\np8\nsI1\nS'<start>'\np9\nsI2\nS'<end>'\np10\nsI3\nS'<unk>'\np11\n"
    b"sI4\nS'caf\\xc3\\xa9'\np12\nssS'word2idx'\np13\n(dp14\ng9\nI1\nsg10\nI2\nsg12\nI4\nsg8\nI0\nsg11\nI3\nssS'idx'\n"
    b'p15\nI5\nsb.',
    'protocol 2, bytes': b''
    b'\x80\x02cutils.vocab\nVocabulary\nq\x00)\x81q\x01}q\x02(U\x08idx2wordq\x03}q\x04(K\x00U\x05<pad>'
    b'q\x05K\x01U\x07<start>q\x06K\x02U\x05<end>q\x07K\x03U\x05<unk>q\x08K\x04U\x05caf\xc3\xa9q\tuU\x08word2idxq\n}q\x0b'
    b'(h\x06K\x01h\x07K\x02h\tK\x04h\x05K\x00h\x08K\x03uU\x03idxq\x0cK\x05ub.',
    'a dict': b'(dp0\nV<pad>\np1\nI0\nsV<start>\np2\nI1\nsV<end>\np3\nI2\nsV<unk>\np4\nI3\nsVcaf\\u00e9\np5\nI4\ns.',
    'an old class': b''
    b"(ivocab\nVocabulary\n(dS'word2idx'\n(dS'<pad>'\nI0\nsS'<start>'\nI1\nsS'<end>'\nI2\nsS'<unk>'\nI3\n"
    b"sS'caf\\xc3\\xa9'\nI4\nssS'idx'\nI5\nsS'idx2word'\n(dI0\nS'<pad>'\nsI1\nS'<start>'\nsI2\nS'<end>'\nsI3\nS'<unk>'\n"
    b"sI4\nS'caf\\xc3\\xa9'\nssb.",
}
CAFE = (*WORDS[:4], 'caf\u00e9')


@pytest.mark.parametrize('name', PYTHON_2)
def test_files_of_python_2_are_read(tmp_path, name):
    (tmp_path / 'x.pkl').write_bytes(PYTHON_2[name])
    assert load_vocabulary(str(tmp_path / 'x.pkl')) == Vocabulary(CAFE)


def test_words_and_their_ids_are_enough(tmp_path):
    ids = {word: number for number, word in enumerate(CAFE)}
    (tmp_path / 'x.json').write_text(json.dumps(ids))
    (tmp_path / 'x.pkl').write_bytes(pickle.dumps(collections.Counter({word.encode(): n for word, n in ids.items()})))
    assert load_vocabulary(str(tmp_path / 'x.json')) == load_vocabulary(str(tmp_path / 'x.pkl')) == Vocabulary(CAFE)
    for other in ({**ids, 'dog': 9}, {**ids, 'dog': 'x'}, {'dog': 0}):
        (tmp_path / 'x.pkl').write_bytes(pickle.dumps(other))
        with pytest.raises(UserError, match=r'x\.pkl (has word ids other|is not a vocabulary in|starts with dog)'):
            load_vocabulary(str(tmp_path / 'x.pkl'))


@pytest.mark.parametrize('name', ['x.pkl', 'x.pickle', 'x.p', 'x.vocab'])
@pytest.mark.parametrize(
    'others', [{}, {'idx': 5}, {'idx2word': list(CAFE)}, {'idx2word': [word.encode() for word in CAFE], 'idx': 5}]
)
def test_ids_of_words_are_enough_in_pickles_of_any_name(tmp_path, monkeypatch, name, others):
    kind = type('Vocab', (), {'__module__': '__main__'})
    monkeypatch.setattr(sys.modules['__main__'], 'Vocab', kind, raising=False)
    made = kind()
    fields = {'word2idx': {word: number for number, word in enumerate(CAFE)}, **others}
    vars(made).update(fields)
    for content in (made, fields):
        (tmp_path / name).write_bytes(pickle.dumps(content))
        assert load_vocabulary(str(tmp_path / name)) == Vocabulary(CAFE)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize('place', ['all', 'idx', 'word2idx', 'other'])
def test_nothing_in_a_file_runs(tmp_path, published, place):
    path = tmp_path / 'x.pkl'
    canary = tmp_path / 'canary'
    setattr(published, place, Hostile(canary))
    path.write_bytes(pickle.dumps(Hostile(canary) if place == 'all' else published))
    if place == 'other':
        assert load_vocabulary(str(path)) == Vocabulary(WORDS)
    else:
        with pytest.raises(UserError, match=r'x\.pkl (is not|has keys .* that disagree)'):
            load_vocabulary(str(path))
    assert not canary.exists()


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'idx': 8}, 'has keys word2idx, idx2word and idx that disagree'),
        ({'idx': None}, 'is not a vocabulary in the layout'),
        ({'idx2word': {0: b'\xff'}}, 'is not the pickle of a vocabulary (UnicodeDecodeError'),
        ({'word2idx': {}}, 'has keys word2idx, idx2word and idx that disagree'),
    ],
)
def test_damaged_fields_are_one_sentence(tmp_path, published, change, message):
    path = tmp_path / 'x.pkl'
    vars(published).update(change)
    path.write_bytes(pickle.dumps(published))
    with pytest.raises(UserError, match=re.escape(f'{path} {message}')):
        load_vocabulary(str(path))


def test_truncated_files_and_other_objects_are_one_sentence(tmp_path, published):
    content = pickle.dumps(published)
    path = tmp_path / 'x.pkl'
    others = [pickle.dumps(x) for x in ({}, [], 3, 'words')]
    for damaged in (*(content[:size] for size in range(0, len(content), 11)), *others, b'{"word2idx": {}}'):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r'is not the pickle of a vocabulary \('):
            load_vocabulary(str(path))
    with pytest.raises(UserError, match=r'missing\.pkl cannot be read'):
        load_vocabulary(str(tmp_path / 'missing.pkl'))


def test_a_file_cannot_change_the_reader(tmp_path):
    path = tmp_path / 'x.pkl'
    path.write_bytes(b'\x80\x02c__main__\nVocabulary\nN}U\x01xK\x01s\x86b.')
    with pytest.raises(UserError):
        load_vocabulary(str(path))
