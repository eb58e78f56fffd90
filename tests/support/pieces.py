"""Tokenizer files of SentencePiece and of Hugging Face."""

import json
import struct

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
