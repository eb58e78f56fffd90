"""Captions that do not fit the vocabulary, or are much longer than the others."""

import pytest

from jitm.config.section import build
from jitm.data.text.vocabularies import tokenize_split
from jitm.data.text.word_level import Vocabulary
from jitm.data.text.wordpiece import SPECIAL_PIECES, WordPiece
from jitm.errors import UserError
from jitm.training.data import check_words
from jitm.training.loop import train_and_evaluate
from jitm.training.plan import unreached_epochs
from jitm.training.sections import PARTS
from tests.configs.settings import load

CAPTIONS = ('a red ring', 'a blue ring')
PIECES = WordPiece.of((*SPECIAL_PIECES, 'a', 'red', 'ring'))


@pytest.mark.parametrize('vocabulary', [Vocabulary.build(['a red ring'], 1), PIECES])
def test_unknown_words_are_counted(vocabulary):
    def check(captions):
        return check_words('mine/train', tokenize_split(captions, vocabulary), vocabulary)

    assert check(CAPTIONS[:1] * 9 + CAPTIONS[1:]) == []
    assert check(CAPTIONS) == ['mine/train: 16.7 % of the words are not in the vocabulary']
    with pytest.raises(UserError, match=r"mine/train has no word of the vocabulary; lower config key 'vocabulary.min_"):
        check(('blue dogs', 'green'))


def test_captions_without_blanks_are_named():
    captions = ('一只狗在草地上跑', '两个人。', '一只狗在草地上跑')
    vocabulary = Vocabulary.build(captions, 2)
    hint = 'its captions have one token each: put blanks between their words'
    with pytest.raises(UserError, match=f'mine/dev has no word of the vocabulary; {hint}'):
        check_words('mine/dev', tokenize_split(captions[1:2], vocabulary), vocabulary)
    (warning,) = check_words('mine/train', tokenize_split(captions, vocabulary), vocabulary)
    assert warning == f'mine/train: 33.3 % of the words are not in the vocabulary; {hint}'


def test_a_very_long_caption_is_named():
    vocabulary = Vocabulary.build(CAPTIONS, 1)
    captions = (*CAPTIONS * 5, 'red ' * 20000)
    (warning,) = check_words('mine/train', tokenize_split(captions, vocabulary), vocabulary)
    message = 'mine/train: text 10 has 20002 tokens, the median is 5; each batch with it is padded to this length'
    assert warning.startswith(message)


@pytest.mark.slow
def test_warnings_are_printed_once_and_not_beside_an_error(tiny_config, tmp_path, caplog):
    tiny_config['vocabulary']['min_count'] = 60
    tiny_config['terms']['later']['start_epoch'] = 9
    (tmp_path / 'other').mkdir()
    (tmp_path / 'other' / 'file').touch()
    with pytest.raises(UserError, match='is not a run of jitm'):
        train_and_evaluate(tiny_config, tmp_path / 'other')
    with pytest.raises(UserError, match='one must train'):
        train_and_evaluate(tiny_config | {'members': {}}, tmp_path / 'run')
    assert not caplog.messages
    tiny_config['epochs'] = 1
    train_and_evaluate(tiny_config, tmp_path / 'run')
    *unknown, unreached = caplog.messages
    assert [text.partition(':')[0] for text in unknown] == ['scenes/train', 'scenes/dev']
    assert unreached == "config key 'terms.later.start_epoch' is 9, which a run of 1 epochs does not reach"


def test_epochs_of_labels_beyond_the_run_are_warned_of():
    config = load('noisy:sgr,ncr,f30k')
    assert unreached_epochs(config) == []
    assert unreached_epochs(config | {'epochs': 15}) == [
        "config key 'labels.noisy_epoch' is 20, which a run of 15 epochs does not reach"
    ]
    config['labels'] |= {'warm_up_epochs': 50, 'noisy_epoch': 60}
    assert len(unreached_epochs(config)) == 2
    config['labels']['noisy_epoch'] = 4
    with pytest.raises(UserError, match=r"'labels.noisy_epoch' is 4, below warm_up_epochs 50: raise it"):
        build({'labels': config['labels']}, PARTS)['labels']()
