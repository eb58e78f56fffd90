"""Runs of UNITER and OSCAR: their scores of regions with boxes and tags."""

import numpy as np
import pytest

import jitm
from jitm.errors import UserError
from jitm.evaluation.protocol import evaluate_runs
from jitm.runs.run import load_run, read_split
from jitm.training.setup import set_up
from tests.support.runs import tiny_scenes, write_initial


@pytest.mark.filterwarnings('ignore:words that the vocabulary')
@pytest.mark.slow
@pytest.mark.parametrize('setting', ['uniter:pretrain,scenes', 'oscar:alone,scenes'])
def test_features_with_boxes_are_scored_as_in_evaluation(setting, tmp_path):
    write_initial(tiny_scenes(setting), tmp_path / 'run')
    run = load_run(tmp_path / 'run')
    split = read_split([run], 'dev')
    _, sims = evaluate_runs([run], split, folds=1)
    assert sims.std() > 1e-4
    features, boxes = ([x[i, : split.counts[i]] for i in range(3)] for x in (split.regions, split.boxes))
    captions = split.captions[:2]
    reads_tags = 'tags' in run.model.reads
    tags = split.tags[:3] if reads_tags else None
    tag = split.tags[1] if reads_tags else None
    np.testing.assert_allclose(jitm.score(run, features, captions, boxes, tags), sims[:3, :2], atol=1e-5)
    np.testing.assert_allclose(jitm.score(run, features[1], captions[0], boxes[1], tag), sims[1, 0], atol=1e-5)
    loaded = jitm.load(tmp_path / 'run')
    images = loaded.encode_image(loaded.load_data('dev').images[1:3])
    np.testing.assert_allclose(loaded.similarity(images, loaded.encode_text(captions)), sims[1:3, :2], atol=1e-5)
    refusals = [
        ((None, tag), 'has a model that reads the location of regions: give their boxes'),
        ((boxes[1][:1], tag), rf'boxes have the shapes \[\[1, 4\]\]; these images need \[\[{split.counts[1]}, 4\]\]'),
        ((boxes[1] * 40, tag), 'boxes must be x1 y1 x2 y2 as fractions of width and height'),
    ]
    if reads_tags:
        refusals += [
            ((boxes[1], None), 'has a model that reads object tags: give the tags of each image'),
            ((boxes[1], ['dog', 'cat']), "tags must be 1 strings, such as 'dog person', one for each image"),
        ]
    for regions, message in refusals:
        with pytest.raises(UserError, match=message):
            jitm.score(run, features[1], captions, *regions)


def test_data_without_boxes_are_refused(precomp_folder):
    config = tiny_scenes('uniter:pretrain,scenes')
    config['data'] = {'source': 'precomp.load', 'root': str(precomp_folder), 'dev_images': 1000}
    with pytest.raises(UserError, match=r'tiny_precomp/train has no boxes, .*: add train_boxes.npy or boxes.npy to'):
        set_up(config)
    np.save(precomp_folder / 'train_boxes.npy', np.zeros((8, 3, 4), np.float32))
    with pytest.raises(UserError, match=r'tiny_precomp/dev has no boxes, .*: add dev_boxes.npy'):
        set_up(config)
