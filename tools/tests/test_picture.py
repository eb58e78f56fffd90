import json

import numpy as np

from tools import picture


def test_the_picture_shows_words_and_the_best_captions(tmp_path):
    names = [*picture.ROWS]
    pairs = [
        {'true_image_id': name, 'words': [*words], 'attention': {'t2i': np.eye(len(words), 49).tolist()}}
        for name, words in picture.ROWS.items()
    ]
    (tmp_path / 'explain').mkdir()
    (tmp_path / 'explain' / 'explain.json').write_text(json.dumps({'pairs': pairs}))
    (tmp_path / 'test_ids.txt').write_text('\n'.join(names))
    captions = ['a', 'b', 'c', 'd']
    (tmp_path / 'test_caps.txt').write_text('\n'.join(captions))
    np.save(tmp_path / 'test_image_of_text.npy', np.arange(4) % 2)
    np.save(tmp_path / 'sims.npy', [[0.1, 0.4, 0.3, 0.2], [0.4, 0.3, 0.2, 0.1]])
    figure = picture.draw(tmp_path, tmp_path)
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    assert titles == [word for words in picture.ROWS.values() for word in words]
    texts = [text.get_text() for panel in figure.axes for text in panel.texts]
    assert texts == ['✕  b\n✓  c\n✕  d', '✕  a\n✓  b\n✕  c']


def test_the_highest_weight_is_the_most_opaque():
    overlay = picture.overlay([0.1, 0.2, 0.3, 0.2])
    np.testing.assert_allclose(overlay[..., 3], [[0, 0.375], [0.75, 0.375]])
