"""Hugging Face's BERT weights as parameters of our BERT."""

import math
import pathlib
import re
from collections.abc import Callable

import chex
import jax
import numpy as np
import safetensors
from flax import traverse_util

from jitm.errors import UserError

FILES = ('model.safetensors', 'pytorch_model.bin')

# Our modules and theirs; the number of a block stands for {}.
_MODULES = {
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
_LEAVES = {'embedding': 'weight', 'kernel': 'weight', 'scale': 'weight', 'bias': 'bias'}


def load_bert(path: str, params: chex.ArrayTree) -> chex.ArrayTree:
    """Reads published weights.

    Args:
      path: a `.safetensors` file, a PyTorch file such as `pytorch_model.bin` (which takes torch), or a folder with one
        of the two. Names may have the prefix `bert.` and normalisations the old names gamma and beta; the pooler and
        heads are left out.
      params: of the `jitm.layers.transformer.BERT` they are for; shapes are enough.

    Returns:
      The same tree with float32 numpy arrays.

    Raises:
      UserError: the file cannot be read, or a tensor is missing or has another shape than the model's.
    """
    names, read = _open(path)
    # Names as `BertModel` has them today -> names in the file.
    names = {
        re.sub(r'\.gamma$', '.weight', re.sub(r'\.beta$', '.bias', name.removeprefix('bert.'))): name for name in names
    }

    def convert(ours: tuple[str, ...], leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        theirs = _their_name(ours)
        if theirs not in names:
            raise UserError(f"{path} has no tensor '{theirs}': give the weights of a BERT of this size")
        tensor = read(names[theirs])
        shape = _their_shape(ours, leaf.shape)
        if tensor.shape != shape:
            raise UserError(
                f"{path} has a tensor '{names[theirs]}' of shape {list(tensor.shape)} where the model has "
                f'{list(shape)}: give the weights of a BERT of this size and vocabulary'
            )
        tensor = tensor.T if ours[-1] == 'kernel' else tensor
        return np.ascontiguousarray(tensor, np.float32).reshape(leaf.shape)

    flat = traverse_util.flatten_dict(params)
    return traverse_util.unflatten_dict({ours: convert(ours, leaf) for ours, leaf in flat.items()})


def _their_name(ours: tuple[str, ...]) -> str:
    module = '/'.join(ours[:-1])
    number = re.search(r'block_(\d+)', module)
    theirs = _MODULES[re.sub(r'block_\d+', 'block_{}', module)].format(number and number[1])
    return f'{theirs}.{_LEAVES[ours[-1]]}'


def _their_shape(ours: tuple[str, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Torch keeps kernels as [out, in] and does not part the heads."""
    if ours[-1] == 'kernel':
        inputs = math.prod(shape[:-1]) if ours[-2] == 'out' else shape[0]
        return math.prod(shape) // inputs, inputs
    return shape if ours[-1] == 'embedding' else (math.prod(shape),)


def _open(path: str) -> tuple[list[str], Callable[[str], np.ndarray]]:
    """The names in a file of weights, and what reads one of them."""
    file = pathlib.Path(path)
    if file.is_dir():
        file = next((file / name for name in FILES if (file / name).is_file()), None)
        if file is None:
            raise UserError(f'{path} has neither {" nor ".join(FILES)}: give the path of BERT weights')
    if not file.is_file():
        raise UserError(f'{path} is not there: give the path of BERT weights ({" or ".join(FILES)})')
    return (_open_safetensors if file.suffix == '.safetensors' else _open_torch)(file)


def _open_safetensors(file: pathlib.Path) -> tuple[list[str], Callable[[str], np.ndarray]]:
    try:
        tensors = safetensors.safe_open(file, framework='numpy')
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f'{file} is not a whole safetensors file ({error}): download it again') from error
    return list(tensors.keys()), tensors.get_tensor


def _open_torch(file: pathlib.Path) -> tuple[list[str], Callable[[str], np.ndarray]]:
    try:
        import torch
    except ImportError as error:
        raise UserError(f'{file} takes torch, which is not installed: install it or give model.safetensors') from error
    try:
        tensors = torch.load(file, map_location='cpu', weights_only=True)
        names = [name for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)]
    except Exception as error:  # Unpickling a damaged file can raise anything.
        reason = f'{file} is not a whole PyTorch file of weights ({type(error).__name__})'
        raise UserError(f'{reason}: download it again') from error
    return names, lambda name: tensors[name].float().numpy()
