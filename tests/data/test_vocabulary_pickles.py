import os
import pickle
import re
import sys
import types

import pytest

from jitm.data.text import Vocabulary
from jitm.data.vocabularies import load_vocabulary
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
    made.idx2word, made.idx = dict(enumerate(WORDS)), len(WORDS)
    return made


@pytest.mark.parametrize('protocol', [2, pickle.HIGHEST_PROTOCOL])
def test_words_are_read(tmp_path, published, protocol):
    path = tmp_path / 'f30k_precomp_vocab.pkl'
    path.write_bytes(pickle.dumps(published, protocol))
    assert load_vocabulary(str(path)) == Vocabulary(WORDS)


def test_strings_of_python_2_are_read(tmp_path):
    path = tmp_path / 'x.pkl'
    ids = b''.join(b'U%c%sK%c' % (len(word), word.encode(), number) for number, word in enumerate(WORDS))
    words = b''.join(b'K%cU%c%s' % (number, len(word), word.encode()) for number, word in enumerate(WORDS))
    state = b'}(U\x08word2idx}(%suU\x08idx2word}(%suU\x03idxK%cu' % (ids, words, len(WORDS))
    path.write_bytes(b'\x80\x02c__main__\nVocabulary\n)\x81' + state + b'b.')
    assert load_vocabulary(str(path)) == Vocabulary(WORDS)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize('place', ['all', 'idx', 'word2idx', 'other'])
def test_nothing_in_a_file_runs(tmp_path, published, place):
    path, canary = tmp_path / 'x.pkl', tmp_path / 'canary'
    setattr(published, place, Hostile(canary))
    path.write_bytes(pickle.dumps(Hostile(canary) if place == 'all' else published))
    with pytest.raises(UserError, match=r"refers to '\w+\.mkdir', which no vocabulary needs and which is not run"):
        load_vocabulary(str(path))
    assert not canary.exists()


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'idx': 8}, 'has keys word2idx, idx2word and idx that disagree'),
        ({'idx': None}, 'is not a vocabulary in the layout'),
        ({'idx2word': {0: b'x'}}, 'is not the pickle of a vocabulary (TypeError'),
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
    content, path = pickle.dumps(published), tmp_path / 'x.pkl'
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
