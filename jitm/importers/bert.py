"""Converts Hugging Face's BERT weights to the parameters of `jitm.layers.transformer.BERT`."""

import re

import chex

from jitm.importers.tensors import LEAVES, convert, new_name, open_tensors

# Module of our model -> module of the published one; {} is the number of a block.
MODULES = {
    'embeddings/words': 'embeddings.word_embeddings',
    'embeddings/positions': 'embeddings.position_embeddings',
    'embeddings/token_types': 'embeddings.token_type_embeddings',
    'embeddings/norm': 'embeddings.LayerNorm',
    'encoder/block_{}/attention/query': 'encoder.layer.{}.attention.self.query',
    'encoder/block_{}/attention/key': 'encoder.layer.{}.attention.self.key',
    'encoder/block_{}/attention/value': 'encoder.layer.{}.attention.self.value',
    'encoder/block_{}/attention/out': 'encoder.layer.{}.attention.output.dense',
    'encoder/block_{}/attention_norm': 'encoder.layer.{}.attention.output.LayerNorm',
    'encoder/block_{}/mlp_in': 'encoder.layer.{}.intermediate.dense',
    'encoder/block_{}/mlp_out': 'encoder.layer.{}.output.dense',
    'encoder/block_{}/mlp_norm': 'encoder.layer.{}.output.LayerNorm',
}


def load_bert(path: str, params: chex.ArrayTree) -> chex.ArrayTree:
    """Reads published weights.

    Args:
      path: a `.safetensors` file, a PyTorch file such as `pytorch_model.bin`, or a folder with one of the two. Names
        may have the prefix `bert.` and normalizations the old names gamma and beta; the pooler and heads are skipped.
      params: of a `jitm.layers.transformer.BERT`; only shapes are read.

    Returns:
      The same tree with float32 numpy arrays.

    Raises:
      UserError: if the file cannot be read, or a tensor is missing or has another shape than the model's.
    """
    names, read = open_tensors(path, 'BERT')
    names = {new_name(name.removeprefix('bert.')): name for name in names}
    return convert(path, names, read, params, published_name, 'BERT')


def published_name(path: tuple[str, ...]) -> str:
    """Returns the name of a parameter's tensor in the current `BertModel`."""
    module = '/'.join(path[:-1])
    number = re.search(r'block_(\d+)', module)
    published = MODULES[re.sub(r'block_\d+', 'block_{}', module)].format(number and number[1])
    return f'{published}.{LEAVES[path[-1]]}'
