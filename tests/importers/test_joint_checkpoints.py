"""Fine-tuned joint encoders become runs; the tests of each importer hold the parameters against the tensors."""

import chex
import jax
import pytest

from jitm.commands.cli import main
from jitm.importers.joint_checkpoints import load_oscar, load_uniter
from jitm.runs.run import load_run
from tests.importers import test_oscar as oscar
from tests.importers import test_uniter as uniter
from tests.support.bert import saved

CHECKPOINTS = {  # --from -> tensors, heads
    'uniter': (uniter.finetuned(), ['itm', 'mlm']),
    'tags_dc': (uniter.tags(), ['itm', 'mlm', 'discriminate', 'correct']),
    'oscar': (oscar.published(), None),
}


@pytest.fixture
def pieces(tmp_path) -> str:
    path = tmp_path / 'vocab.txt'
    path.write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcdef']))
    return str(path)


@pytest.mark.parametrize('name', CHECKPOINTS)
def test_the_run_has_the_parameters(tmp_path, pieces, name):
    tensors, heads = CHECKPOINTS[name]
    path = saved(tmp_path, tensors)
    arguments = ['convert', '--from', name, path, '--out', str(tmp_path / 'run'), '--vocabulary', pieces]
    assert main(arguments) == 0
    run = load_run(tmp_path / 'run')
    load = load_oscar if name == 'oscar' else load_uniter
    params = run.variables['params']
    chex.assert_trees_all_equal(
        params, load(path, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params))
    )
    model = run.config['model']
    assert (model['size'], model.get('heads')) == ('tiny', heads)
    assert (run.feature_size, run.model.size) == (10, 'tiny')


@pytest.mark.parametrize(
    ('name', 'without', 'arguments', 'message'),
    [
        (
            'uniter',
            'uniter.embeddings.word_embeddings.weight',
            (),
            "has no tensor 'uniter.embeddings.word_embeddings.weight' with 2 axes",
        ),
        ('oscar', 'classifier.weight', (), 'lacks classifier.weight, so that it cannot score pairs'),
        ('oscar', 'bert.pooler.dense.bias', (), 'lacks tensors (bert.pooler.dense.bias)'),
        ('oscar', None, ('--config', 'uniter'), "has the model 'uniter.UNITER', not 'oscar.OSCAR'"),
        ('oscar', None, ('--vocabulary', ''), '--vocabulary is missing'),
        ('oscar', None, ('--vocabulary', 'SHORT'), 'has 10 word pieces, but'),
    ],
)
def test_other_files_are_one_sentence(tmp_path, pieces, capsys, name, without, arguments, message):
    tensors, _ = CHECKPOINTS[name]
    short = tmp_path / 'short.txt'
    short.write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcde']))
    path = saved(tmp_path, {key: x for key, x in tensors.items() if key != without})
    places = {'SHORT': str(short)}
    given = [places.get(word, word) for word in arguments]
    out = ['--out', str(tmp_path / 'run'), '--vocabulary', pieces, *given]
    assert main(['convert', '--from', name, path, *out]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count('\n') == 1
    assert not (tmp_path / 'run').exists()
