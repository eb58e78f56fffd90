"""Tokenizers of published folders against those of transformers, and errors."""

import json

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from jitm.data import scenes
from jitm.data.text.published import PublishedPieces, load_folder
from jitm.data.text.vocabularies import describe_vocabulary, kind_of, load_vocabulary, restore_vocabulary
from jitm.data.text.wordpiece import WordPiece
from jitm.errors import UserError
from tests.support.pieces import write_model

TRICKY = (
    'A dog runs on the beach.',
    '  A   dog\truns\n',
    'Café au lait, déjà-vu! ﬁne',
    'A woman\u2019s T-shirt  says "hi" 😀 2nd floor, isn\'t it?',
    'kitesurfing snowboarder 1,000.50',
    '犬と猫 dog \u0406\u0407',
    'x' * 120,
    'a' + '\u200b' + 'b\xa0c',
)
WORDS = ['a', 'dog', 'runs', 'on', 'the', 'beach', 'cafe', 'b', 'c', '.', ',', '!', "'", '-', '##s', '##n', '犬']
BERT = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]
MPNET = ['<s>', '<pad>', '</s>', '<unk>', *BERT, '<mask>']


def write_words(folder, words, **config):
    (folder / 'vocab.txt').write_text('\n'.join(words) + '\n', encoding='utf-8')
    if config:
        (folder / 'tokenizer_config.json').write_text(json.dumps(config))


def write_bytes(folder):
    """Byte pairs of the captions of scenes, as RoBERTa's files."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ['<s>', '<pad>', '</s>', '<unk>']
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(scenes.load('train', train_images=20).captions, trainer)
    model = json.loads(tokenizer.to_str())['model']
    (folder / 'vocab.json').write_text(json.dumps(model['vocab'] | {'<mask>': len(model['vocab'])}))
    merges = [' '.join(merge) for merge in model['merges']]
    (folder / 'merges.txt').write_text('\n'.join(['#version: 0.2', *merges]) + '\n', encoding='utf-8')
    return json.loads((folder / 'vocab.json').read_text()), [tuple(merge) for merge in model['merges']]


def write_sentencepiece(folder):
    """A file of XLM-R: its first three pieces have other ids than in the model."""
    pieces = [('<unk>', 0.0, 2), ('<s>', 0.0, 3), ('</s>', 0.0, 3)]
    texts = ('▁', 'a', '▁a', '▁dog', 'do', 'g', '▁Caf', 'é', 's', '▁the', '▁beach', ',', '.', '犬')
    pieces += [(text, -1.0 - n / 8, 1) for n, text in enumerate(texts)]
    write_model(folder / 'sentencepiece.bpe.model', pieces)
    special = [('<s>', 0.0), ('<pad>', 0.0), ('</s>', 0.0), ('<unk>', 0.0)]
    return [*special, *((text, score) for text, score, _ in pieces[3:]), ('<mask>', 0.0)]


def make_pairs(kind, folder):
    """The tokenizer of transformers for a folder that this writes."""
    import transformers

    if kind == 'roberta':
        vocab, merges = write_bytes(folder)
        return transformers.RobertaTokenizer(vocab=vocab, merges=merges, add_prefix_space=False)
    if kind == 'xlm-roberta':
        return transformers.XLMRobertaTokenizer(vocab=write_sentencepiece(folder))
    cased = kind.endswith('cased')
    words = [*(MPNET if kind == 'mpnet' else BERT), *(['Dog'] if cased else [])]
    write_words(folder, words, do_lower_case=not cased)
    name = 'MPNetTokenizer' if kind == 'mpnet' else 'BertTokenizer'
    return getattr(transformers, name)(vocab={word: n for n, word in enumerate(words)}, do_lower_case=not cased)


KINDS = ['bert', 'cased', 'mpnet', 'roberta', 'xlm-roberta']


@pytest.mark.needs('transformers')
@pytest.mark.parametrize('kind', KINDS)
def test_ids_are_those_of_transformers(tmp_path, kind):
    theirs = make_pairs(kind, tmp_path)
    ours = load_folder(str(tmp_path))
    for caption in TRICKY:
        assert ours.encode(caption).tolist() == theirs(caption)['input_ids'], caption
    assert ours.unknown == theirs.unk_token_id or kind == 'roberta'  # it has all bytes
    # Another file of the same tokenizer, which cuts captions and pads them.
    theirs.backend_tokenizer.enable_truncation(4)
    theirs.backend_tokenizer.enable_padding(length=30)
    (tmp_path / 'json').mkdir()
    theirs.backend_tokenizer.save(str(tmp_path / 'json' / 'tokenizer.json'))
    same = load_folder(str(tmp_path / 'json'))
    for caption in TRICKY:
        assert same.encode(caption).tolist() == theirs(caption, truncation=False, padding=False)['input_ids'], caption


@pytest.mark.needs('transformers')
@pytest.mark.parametrize('kind', KINDS)
def test_a_stored_tokenizer_has_the_same_ids(tmp_path, kind):
    make_pairs(kind, tmp_path)
    pieces = load_vocabulary(str(tmp_path), 5)
    again = restore_vocabulary(json.loads(json.dumps(describe_vocabulary(pieces))))
    assert (kind_of(again), again.hash) == (kind_of(pieces), pieces.hash)
    assert type(again) is (WordPiece if kind in ('bert', 'cased') else PublishedPieces)
    for caption in TRICKY:
        ids = pieces.encode(caption)
        assert ids.tolist() == again.encode(caption).tolist()
        whole = load_folder(str(tmp_path)).encode(caption)
        assert ids.tolist() == [*whole[:-1][:4], whole[-1]]
    whole = load_folder(str(tmp_path))
    assert pieces.hash != whole.hash
    assert whole.decode(whole.encode('a dog')) == 'a dog'


def test_only_the_tokenizer_of_a_bert_has_a_mask(tmp_path):
    write_words(tmp_path, BERT)
    assert load_folder(str(tmp_path)).with_mask().mask == 4
    write_words(tmp_path, BERT, do_lower_case=False)  # whose pieces have no capitals
    with pytest.raises(UserError, match='the pieces have no mask, which masking and changing words require'):
        load_folder(str(tmp_path)).with_mask()


def test_a_folder_may_lower_all_captions(tmp_path):
    write_bytes(tmp_path)
    assert load_folder(str(tmp_path)).encode('A Ring').tolist() != load_folder(str(tmp_path)).encode('a ring').tolist()
    (tmp_path / 'sentence_bert_config.json').write_text('{"max_seq_length": 8, "do_lower_case": true}')
    assert load_folder(str(tmp_path)).encode('A Ring').tolist() == load_folder(str(tmp_path)).encode('a ring').tolist()


@pytest.mark.parametrize(
    ('name', 'content', 'message'),
    [
        (None, '', r'has no tokenizer\.json or vocab\.txt or vocab\.json or sentencepiece\.bpe\.model: add'),
        ('tokenizer.json', '{', r'tokenizer\.json is no tokenizer'),
        ('vocab.txt', 'a\nb\n', r"vocab\.txt is no tokenizer \('\[SEP\]'\)"),
        ('vocab.json', '{}', r'merges\.txt cannot be read \(No such file or directory\)'),
        ('sentencepiece.bpe.model', 'no model', r'sentencepiece\.bpe\.model is no tokenizer'),
        ('tokenizer_config.json', '[', r'has no tokenizer\.json'),
    ],
)
def test_damaged_files(tmp_path, name, content, message):
    if name:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        load_folder(str(tmp_path))


def test_a_tokenizer_without_special_pieces(tmp_path):
    tokenizers.Tokenizer(models.WordLevel({'a': 0})).save(str(tmp_path / 'tokenizer.json'))
    with pytest.raises(UserError, match=r'tokenizer\.json adds no start and end to a text'):
        load_folder(str(tmp_path))
