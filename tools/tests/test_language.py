"""Prose uses the standard terms of the field: no private word in README, docs, docstrings, comments or messages."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

MAX_TEST_NAME = 65
SUBJECT = r'(?:a|an|the|some|one|this|these|its|every|each|of)'
# What to write -> the pattern of what not to write.
RULES = {
    'author and year': r'\bpapers? 0\d\d\b',
    'caption': r'(?<!one )(?<!each )(?<!a single )\bsentences?\b(?!-transformers| that (?:names|says|explains))',
    'synthetic (negative) caption': r'\b(?:written|wrong|made-up|false) captions?\b|\bmade[ -]up\b',
    'generator': r'\bwriters?\b',
    'perturbed caption, perturbation': r'\battack(?:s|ed)?\b',
    'match probability, mismatched word': (
        r'\bwords? (?:that |which )?(?:do(?:es)? not )?fits?\b|\bfits? (?:the|an) image\b'
    ),
    'reduced variant': r'\btwins?\b',
    'anchor model, target model, model': r'(?<!hard )(?<!switch )(?<!either )\bbranch(?:es)?\b',
    'distinguished; within the spread of the seeds': r'\btold apart\b|\btells? [\w ]{0,30}\bapart\b',
    'value for constant scores; collapse': (
        r'\bwhere equal scores\b|\bequal scores (?:would )?(?:put|give)\b|\bloss sits\b'
    ),
    'resume': r'\b(?:go|goes|went|going) on\b(?! (?:top|the|a)\b)',
    'is initialized from, starts with': r'\b(?:begins?|began|begun) (?:with|as|anew)\b',
    'sampled, randomly initialized': (
        r'\b(?:is|are|was|were|be|been) drawn\b|\bdrawn (?:from|by|anew|again|at|with|uniformly)\b'
    ),
    'valid, mask': r'\b(?:is|are|was|were|be) (?:not |all |really )?there\b(?! (?:a|an|any|no)\b)',
    'token position': (
        r'\b(?:word|token|masked|refilled|these|those) places?\b'
        r'|\bplaces? of (?:a|the|each|every) (?:caption|text|word|token)\b'
    ),
    'metrics, outputs': r'\b(?:told|said)\b',
    'a noun': rf'^\W*what {SUBJECT} \w+ (?:tells?|says?|has|have|is|are|was|asks?|gives?|needs?|found|wrote|knows?)\b',
    'shortlist': r'\bproposals?\b|\bproposes\b|\bproposed (?:pairs?|candidates?|texts?|captions?|images?)\b',
    'stage': r'\b(?:first|second|both|two|each|this|next|that|the) rounds?\b(?! of \d)',
    'implemented, available, not measured': r'\bworks today\b|\bat hand\b|\bnumbers? of ours\b',
    'special tokens': r'(?<!tokens at )\bboth ends\b',
    'a subject': r'\bnobody\b|:\s+(?:all |one )?of (?:these|those|them|that \w+)\.$',
}
# The same for docstrings, comments and messages only.
CODE_RULES = {
    'a noun before "of"': r'# of\b|(?:^|[.:] )(?-i:Of) (?:a|an|the|these|those|each|every|its)\b',
    'Error: If': r'Error: (?-i:if)\b',
    'estimate': r'\bbelie(?:f|ve)',
    'a noun for "what ... of"': (
        r'\bwhat (?:a|an|the|each|every|its) \w+ (?:has|have|is|keeps?|knows?|lacks?|reads?|returns?|says?|sees?) of\b'
    ),
    'raise, reject': r'\brefus(?:e|al)',
    'tolerate, be robust to': r'\b(?:bears?|borne)\b',
    'use one of': r'\btake one of\b',
    'that jitm did not write': r'\bsomebody else\b',
    'differently from': r'\botherwise than\b',
    'in the same way, equally': r'\balike\b',
    'again': r'\banew\b',
    'yet': r'\bas yet\b',
}
PATTERNS = {term: re.compile(pattern, re.IGNORECASE) for term, pattern in RULES.items()}
CODE_PATTERNS = {term: re.compile(pattern, re.IGNORECASE) for term, pattern in CODE_RULES.items()}
# Words in their usual sense: (path, part of the line).
EXEMPT = (
    ('docs/references.md', 'entence'),  # titles of papers
    ('docs/results/dbl.md', 'branch'),  # a quotation
    ('jitm/', 'errors into a sentence'),
    ('jitm/data/images/caption_files.py', 'sentences'),  # a key of Karpathy's files
    ('jitm/serving/loaded_run.py', 'sentences'),  # a keyword of SentenceTransformer
    ('benchmarks/', ' round'),  # of timing
    ('jitm/report/', 'drawn'),  # figures are
    ('jitm/pages/', 'drawn'),
    ('tests/report/', 'drawn'),
    ('jitm/data/scene_graphs/', 'bear'),  # the animal
    ('jitm/data/scenes/', 'drawn'),  # and so are the shapes
)


def _blank(match: re.Match) -> str:
    return re.sub(r'[^\n]', ' ', match[0])


def read_markdown(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a page with their numbers, without code."""
    text = re.sub(r'^```.*?^```|^    .*?$|`[^`\n]*`', _blank, path.read_text(), flags=re.DOTALL | re.MULTILINE)
    yield from enumerate(text.splitlines(), 1)


def read_python(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of all comments and strings of a module with their numbers, without code in backticks."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, 'FSTRING_MIDDLE', tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in kinds:
            text = re.sub(r'`[^`\n]*`', ' ', token.string.strip('\'"'))
            for number, line in enumerate(text.splitlines()):
                yield token.start[0] + number, line.rstrip('\'"')


def find_words(name: str, line: str) -> list[tuple[str, str]]:
    """Returns what to write and the private word, for each in a line of a file."""
    if any(name.startswith(start) and part in line for start, part in EXEMPT):
        return []
    is_code = name.endswith('.py') and 'tests/' not in name
    patterns = PATTERNS | CODE_PATTERNS if is_code else PATTERNS
    return [(term, match[0]) for term, pattern in patterns.items() if (match := pattern.search(line))]


def find_hits(paths: list[Path]) -> list[str]:
    """Returns `file:line: what to write: the line` of each private word."""
    hits = []
    for path in paths:
        name = str(path.relative_to(ROOT))
        lines = read_markdown(path) if path.suffix == '.md' else read_python(path)
        for number, line in lines:
            for term, word in find_words(name, line):
                hits.append(f"{name}:{number}: write '{term}', not '{word}': {line.strip()[:100]}")
    return hits


@pytest.mark.parametrize(
    'area',
    ['README.md', 'docs', 'jitm', 'configs', 'examples', 'benchmarks', 'experiments', 'tools', 'train.py', 'eval.py'],
)
def test_prose_uses_standard_terms(area):
    path = ROOT / area
    paths = [path] if path.is_file() else sorted([*path.rglob('*.py'), *path.rglob('*.md')])
    assert paths
    hits = find_hits([path for path in paths if 'tests' not in path.parts])
    assert not hits, f'{len(hits)} private words\n' + '\n'.join(hits)


def test_names_of_tests_are_short_and_standard():
    hits = []
    for path in sorted([*ROOT.glob('tests/**/*.py'), *ROOT.glob('*/tests/*.py')]):
        name = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith('test_'):
                words = [word for _, word in find_words(name, node.name.replace('_', ' '))]
                if words or len(node.name) > MAX_TEST_NAME:
                    hits.append(f'{name}:{node.lineno}: {node.name} {words or len(node.name)}')
    assert not hits, f'{len(hits)} names\n' + '\n'.join(hits)


@pytest.mark.parametrize(
    ('line', 'found'),
    [
        ('the score of a sentence', 'caption'),
        ('errors are one sentence', None),
        ('as in paper 003', 'author and year'),
        ('Of 3 papers, 12 tables.', None),
        ('the loss sits where equal scores put it', 'value for constant scores; collapse'),
        ('equal scores are ordered by index', None),
        ('the same command goes on', 'resume'),
        ('they go on top of the budget', None),
        ('a word that does not fit', 'match probability, mismatched word'),
        ('a block that does not fit into memory', None),
        ('the share of queries in the hard branch', None),
        ('runs: of these.', 'a subject'),
        ('# of the intervals', 'a noun before "of"'),
        ('seed: Of the batch the first.', 'a noun before "of"'),
        ('of the batch, in order', None),
        ('UserError: if it is damaged.', 'Error: If'),
        ('UserError: If it is damaged.', None),
        ('what a model reads of a split', 'a noun for "what ... of"'),
        ('the labels that a model believes', 'estimate'),
    ],
)
def test_patterns_find_private_words_only(line, found):
    assert next((term for term, _ in find_words('x.py', line)), None) == found
