"""The pairs that a model believes least."""

import json

import numpy as np

from jitm.commands import cli
from jitm.data.load import load_split
from jitm.evaluation import doubtful_pairs
from jitm.inference.scoring import Scorer, ScoringOptions
from jitm.runs.run import load_run, read_split, read_tokens

OPTIONS = ScoringOptions()


def test_doubts_equal_a_loop(finished, monkeypatch):
    monkeypatch.setattr(doubtful_pairs, 'PAIRS', 32)  # of 80: two groups and a filled one
    run = load_run(finished)
    split = read_split([run], 'train')
    got = doubtful_pairs.doubts(run, split, rounds=2, options=OPTIONS)
    options = ScoringOptions('float32', 512, 'highest')
    sims = Scorer(run.model, run.variables, split, read_tokens(run, split), options).score_together()
    values = {text: [] for text in range(split.num_texts)}
    for rows in doubtful_pairs._groups(split.num_texts, 2):
        assert len(set(rows)) == 32
        images = split.image_of_text[rows]
        for text in rows:
            image = split.image_of_text[text]
            hardest_text = sims[image, rows][images != image].max()
            hardest_image = sims[images[images != image], text].max()
            values[text].append((hardest_text + hardest_image) / 2 - sims[image, text])
    assert set(map(len, values.values())) <= {2, 3, 4}
    np.testing.assert_allclose(got, [np.mean(doubts) for doubts in values.values()], atol=1e-5)


def test_mixed_pairs_are_found_and_marked(finished):
    run = load_run(finished)
    split = load_split(run.config['data'] | {'noise_rate': 0.3}, 'train', noisy=True)
    doubt = doubtful_pairs.doubts(run, split, rounds=4, options=OPTIONS)
    pairs = doubtful_pairs.describe(doubt, split, 10)
    assert [pair['doubt'] for pair in pairs] == sorted(doubt, reverse=True)[:10]
    assert all(pair['mixed'] == (not split.clean[pair['text']]) for pair in pairs)
    mixed = int((~split.clean).sum())
    marked = sum(pair['mixed'] for pair in pairs)
    assert f'; {marked} of them are mixed ({10 * marked}.0 %), of {mixed} in all' in doubtful_pairs.summarize(
        pairs, split
    )
    assert 'mixed' not in doubtful_pairs.summarize(pairs, read_split([run], 'train'))


def test_the_command_writes_a_page_and_lines(finished, tmp_path, capsys):
    argv = ['audit', '--workdir', str(finished), '--count', '7', '--output', str(tmp_path / 'out')]
    assert cli.main(argv) == 0
    lines = [json.loads(line) for line in (tmp_path / 'out' / 'audit.jsonl').read_text().splitlines()]
    assert len(lines) == 7
    assert {*lines[0]} == {'text', 'caption', 'image', 'image_id', 'doubt'}
    page = (tmp_path / 'out' / 'audit.html').read_text()
    assert page.count('<article') == page.count('data:image/png') == 7
    assert all(line['caption'] in page for line in lines)
    assert '7 of 80 pairs' in capsys.readouterr().out


def test_pairs_of_one_image_have_no_doubt():
    np.testing.assert_array_equal(doubtful_pairs._doubts(np.ones((2, 2)), np.array([3, 3])), 0)
