"""What programs do differently on CPUs, GPUs and TPUs; layers and models ask here, not for the platform."""

from jitm.devices import parallel

# Size of the largest array while a tile of pairs is scored, in floats. A CPU's cache should hold it. On a TPU, SCAN's
# tile has 128 texts then, as many as lanes: the compiler expects 2.8 times the time for its scores at 2^20, 1.7 at
# 2^22, 1.1 at 2^26. On a GPU a pass over it should take longer than the start of a kernel.
TILE_FLOATS = {'cpu': 2**20, 'tpu': 2**24, 'gpu': 2**26}
IMAGES_ON_CPU = 8  # images whose maps stay in the caches: twice as fast as 64
TEXTS_ON_CPU = 16  # texts of a call whose products have a row for each word


def tile_floats() -> int:
    """Returns the maximum size of the largest array while a tile of pairs is scored, in floats."""
    return TILE_FLOATS[parallel.platform()]


def unroll() -> bool:
    """Returns whether equal layers are compiled one by one; compilers of accelerators take minutes for 12 blocks."""
    return parallel.platform() == 'cpu'


def copies_cheap_operations() -> bool:
    """Returns whether the compiler copies sums and the like into each of their uses, however many there are."""
    return parallel.platform() == 'cpu'


def conditionals() -> bool:
    """Returns whether a step has conditionals on computed values; a GPU would wait for the values."""
    return parallel.platform() == 'cpu'


def keeps_everything() -> bool:
    """Returns whether loops keep all that fits; a CPU computes the cheap part again faster than it reads it."""
    return parallel.platform() != 'cpu'


def cut_sequences() -> bool:
    """Returns whether recurrent encoders read no further than the ends of sequences.

    Accelerators take as long for fewer sequences, and their compilers half a minute for each segment.
    """
    return parallel.platform() == 'cpu'


def projects_within_steps() -> bool:
    """Returns whether a recurrent encoder without a gradient projects each input in its step, where caches hold it."""
    return parallel.platform() == 'cpu'


def cut_texts() -> bool:
    """Returns whether texts of different lengths are computed apart; a TPU takes no less time then."""
    return parallel.platform() != 'tpu'


def one_text_at_a_time() -> bool:
    """Returns whether NAAF mines the threshold of each text at its own length."""
    return parallel.platform() == 'cpu'


def sort_to_rank() -> bool:
    """Returns whether GPO sorts values to rank them.

    A CPU counts the larger values, 9 times as fast as a sort there. Elsewhere a weight looked up for each value, and
    its gradient, would be a gather and a scatter of single elements.
    """
    return parallel.platform() != 'cpu'


def one_gradient() -> bool:
    """Returns whether only one of the dense and the sparse gradient of scores is compiled."""
    return parallel.platform() != 'cpu'


def images_per_call(limit: int) -> int:
    """Returns how many images a convolutional network encodes at a time, at most this many."""
    return min(limit, IMAGES_ON_CPU) if parallel.platform() == 'cpu' else limit


def texts_per_call(limit: int, recurrent: bool) -> int:
    """Returns how many texts are encoded at a time, at most this many; a recurrent encoder multiplies word by word."""
    return min(limit, TEXTS_ON_CPU) if parallel.platform() == 'cpu' and not recurrent else limit
