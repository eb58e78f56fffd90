"""The authors' names of the tensors of our models, one table per system.

A checkpoint holds its modules as a list, images first, then texts, then the similarity, so that `fc.weight` of the
images is 'model.0.fc.weight'. A GRU of `torch.nn` has the rows of its three gates in one tensor.
"""

from jitm.importers import bert_weights
from jitm.importers.tensors import KeyMap, below

GATES = ('reset', 'update', 'new')  # in the order of their rows
NETWORK = 'model.0.cnn'  # VSE++'s VGG19 or ResNet, with torchvision's names


def _gru(ours: str, theirs: str) -> dict[str, str]:
    """Returns the modules of a GRU, of both directions."""
    modules = {}
    for n, gate in enumerate(GATES):
        for direction, suffix in (('forward', ''), ('backward', '_reverse')):
            modules[f'{ours}/{direction}/input_{gate}'] = f'{theirs}.{{}}_ih_l0{suffix}[{n}]'
            modules[f'{ours}/{direction}/hidden_{gate}'] = f'{theirs}.{{}}_hh_l0{suffix}[{n}]'
    return modules


_IMAGES = {'image/image_fc': 'model.0.fc'}
_TEXTS = {'text/embedding': 'model.1.embed', **_gru('text/gru', 'model.1.rnn')}

VSEPP = KeyMap(
    _IMAGES | _TEXTS | {'image/regions/image_fc': 'model.0.fc'},  # the latter after a network
    networks={'image/network/': f'{NETWORK}.'},
)
SCAN = KeyMap(_IMAGES | _TEXTS)  # also BFAN

IMRAM = KeyMap(
    modules={
        **_IMAGES,
        **_TEXTS,
        'memory_t2i/gate': 'model.gate_t2i',
        'memory_t2i/linear': 'model.linear_t2i',
        'memory_i2t/gate': 'model.gate_i2t',
        'memory_i2t/linear': 'model.linear_i2t',
    },
    # In the released code a model has the memories of both directions, even with one direction or one step.
    unread=r'.*\.num_batches_tracked|model\.(gate|linear)_(t2i|i2t)\..*',
)

STEPS = 8  # the most of SGR's graph reasoning; 3 in the released code
SGRAF = KeyMap(
    modules={
        **_IMAGES,
        'text/embedding': 'model.1.embed',
        **_gru('text/gru', 'model.1.cap_rnn'),
        'image_whole/local': 'model.2.v_global_w.embedding_local.0',
        'image_whole/local_norm': 'model.2.v_global_w.embedding_local.1',
        'image_whole/whole': 'model.2.v_global_w.embedding_global.0',
        'image_whole/whole_norm': 'model.2.v_global_w.embedding_global.1',
        'image_whole/scores': 'model.2.v_global_w.embedding_common.0',
        'text_whole/local': 'model.2.t_global_w.embedding_local.0',
        'text_whole/whole': 'model.2.t_global_w.embedding_global.0',
        'text_whole/scores': 'model.2.t_global_w.embedding_common.0',
        'local/linear': 'model.2.sim_tranloc_w',
        'whole/linear': 'model.2.sim_tranglo_w',
        'score': 'model.2.sim_eval_w',
        'reasoning/graph_*': 'model.2.SGR_module.*.sim_graph_w',
        'reasoning/relevance': 'model.2.SAF_module.attn_sim_w',
        'reasoning': 'model.2.SAF_module.bn',
    },
    variables={
        'reasoning/query_*': 'model.2.SGR_module.*.graph_query_w.weight',
        'reasoning/query_bias_*': 'model.2.SGR_module.*.graph_query_w.bias',
        'reasoning/key_*': 'model.2.SGR_module.*.graph_key_w.weight',
    },
    # The bias of a key adds a constant to all edges of a node, which the softmax cancels.
    unread=r'.*\.num_batches_tracked|.*\.graph_key_w\.bias',
)

DBL = KeyMap(
    modules={
        **_IMAGES,
        'text/embedding': 'model.1.embed',
        **_gru('text/gru', 'model.1.cap_rnn'),
        'local/linear': 'model.2.sim_tran_w',
        'score': 'model.2.sim_eval_w',
    },
    unread=r'.*\.num_batches_tracked|model_t\..*',  # the moving average of MSS
)

NAAF = KeyMap(
    _IMAGES | _TEXTS,
    variables={'threshold': 'opt.thres', 'safe_threshold': 'opt.thres_safe'},
)

LAYERS = 8  # the most of VSRN's graph; 4 in the released code


def _graph() -> dict[str, str]:
    """Returns the modules of the graph, whose layers are counted from 1."""
    layer = {'theta': 'theta', 'phi': 'phi', 'g': 'g', 'w': 'W.0', 'norm': 'W.1'}
    modules = {}
    for n in range(LAYERS):
        modules |= below(layer, f'graph_{n}/', f'model.0.Rs_GCN_{n + 1}.')
    return modules


VSRN = KeyMap(
    modules={
        'image_fc': 'model.0.fc',
        **_graph(),
        **_gru('region_gru', 'model.0.img_rnn'),
        'norm': 'model.0.bn',
        **_TEXTS,
    },
    unread=r'.*\.num_batches_tracked|model\.2\..*',  # the captioner, which the files of AOQ have
)

POOLED = KeyMap(  # VSE-infinity, ESA and RVSE++
    modules={
        **_IMAGES,
        'image/image_mlp/linear_1': 'model.0.mlp.layers.0',
        'image/image_mlp/linear_2': 'model.0.mlp.layers.1',
        'image/image_mlp/norm': 'model.0.mlp.bns.0',
        **_gru('image_pool/gru', 'model.0.gpool.gru'),
        'image_pool/linear': 'model.0.gpool.linear',
        'image_pool/scores': 'model.0.linear1',
        **_TEXTS,
        'text/linear': 'model.1.linear',
        **below(bert_weights.MODULES, 'text/bert/', 'model.1.bert.'),
        **_gru('text_pool/gru', 'model.1.gpool.gru'),
        'text_pool/linear': 'model.1.gpool.linear',
        'text_pool/scores': 'model.1.linear1',
    },
    # The second normalization of the MLP is stored, but never applied.
    unread=r'.*\.num_batches_tracked|.*\.mlp\.bns\.1\..*|.*\.bert\.(pooler\..*|embeddings\.position_ids)',
)
