"""Models from the sections of a config."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flax import linen as nn

from jitm.config.build import parameters_of
from jitm.config.hints import check_keys, check_value
from jitm.config.section import Section, bind
from jitm.errors import ArgumentError, UserError
from jitm.models.matcher import Matcher
from jitm.types import Count


def is_module(value: Any) -> bool:
    """Whether a value is a class of models or of their modules."""
    return isinstance(value, type) and issubclass(value, nn.Module)


MODEL = Section(
    'name',
    'jitm.models',
    own=is_module,
    null={},
    takes=('parent', 'name', 'vocab_size', 'embed_dim'),
    settable=('embed_dim',),
)
MODULE = MODEL._replace(package='jitm.layers')
SECTIONS = {'model': MODEL, 'model.**': MODULE, 'members.*.model': MODEL, 'members.*.model.**': MODULE}


def member_model(config: Mapping[str, Any], member: str) -> Mapping[str, Any]:
    """Returns the model section of a member: its own `model`, its source's if it is a copy, or the config's `model`."""
    section = config['members'][member]
    copied = config['members'].get(section.get('of', ''), section)
    return copied.get('model') or config['model']


def heads_of(model: Mapping[str, Any]) -> Sequence[str]:
    """Returns the heads of a model section."""
    heads = model.get('heads', ())
    check_value('model.heads', heads, tuple[str, ...])
    return heads


def make_model(model: Mapping[str, Any], vocab_size: int, *, own: bool = False, imports: bool = False) -> Matcher:
    """Builds the matcher of a config: dict(name='vse.VSE', ...) -> Matcher.

    A nested sub-dict is a module of `jitm.layers`. Each module gets the vocabulary's size and the model's `embed_dim`
    if it has these arguments.

    Args:
      model: The model section of the config.
      vocab_size: The number of words of the vocabulary.
      own: Whether the classes may be defined in modules of the user, see `names.resolve`.
      imports: Whether these modules are imported; only for a config that the user wrote.

    Raises:
      UserError: If a name or an argument is unknown or missing.
    """
    if 'embed_dim' in model:
        check_value('model.embed_dim', model['embed_dim'], Count)
    shared = {'vocab_size': vocab_size} | {key: model[key] for key in ('embed_dim',) if key in model}
    read = set()

    def build(section, node, where):
        section = section if own else section._replace(own=None)
        parameters = parameters_of(section.functions(node, where, imports)[0])
        node = dict(node)
        for key, value in node.items():
            if isinstance(value, Mapping):
                node[key] = build(MODULE, value, f'{where}.{key}')
            elif key in parameters and parameters[key].annotation is nn.Module:
                raise UserError(f"config key '{where}.{key}' must be a dict with the name of a module in jitm.layers")
        if where == 'model' and 'embed_dim' in read - {*parameters}:  # one of its modules reads it
            del node['embed_dim']
        make = bind(section, node, where, imports)
        required = {key for key, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
        check_keys(shared, shared, where=where, required=required & make.accepted)
        read.update(make.accepted & shared.keys())
        return make(**shared)

    return build(MODEL, model, 'model')


def check_matcher(model: nn.Module) -> None:
    """Raises a UserError unless a model is a Matcher whose methods have the arguments of the interface."""
    kind = type(model).__name__
    if not isinstance(model, Matcher):
        raise UserError(f'{kind} is not a Matcher: derive it from DualEncoder of jitm.models.matcher')
    for name, interface in vars(Matcher).items():
        if name.startswith('_') or not inspect.isfunction(interface):
            continue
        method = getattr(type(model), name)
        expected = [*inspect.signature(interface).parameters]
        if name in ('encode_image', 'encode_text') and method is interface:
            raise UserError(f'{kind} has no {name}({", ".join(expected)}): define it')
        signature = inspect.signature(method)
        keywords = {'train': None} if 'train' in expected else {}
        try:
            signature.bind(*filter('train'.__ne__, expected), **keywords)
        except TypeError:
            arguments = ', '.join(signature.parameters)
            raise UserError(f'{kind}.{name} takes ({arguments}); it must take ({", ".join(expected)})') from None


@contextlib.contextmanager
def model_keys() -> Iterator[None]:
    """Names the config key in errors of models that are initialized within the block.

    Flax calls `setup` only when a model is initialized or applied, so that `bind` cannot see these errors. An
    ArgumentError becomes a UserError with the key of the innermost module, such as 'model.text.size'.
    """

    def call(method, args, keywords, context):
        try:
            return method(*args, **keywords)
        except ArgumentError as error:
            raise error.in_section('.'.join(('model', *context.module.path))) from error

    with nn.intercept_methods(call):
        yield
