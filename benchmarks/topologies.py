"""Accelerators: topologies for which their own compilers compile without a device, and their published rates."""

import dataclasses
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from jitm.errors import UserError

INSTALL = "pip install -e '.[aot]'"
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


@dataclasses.dataclass(frozen=True)
class Chip:
    """Public figures of a device.

    Attributes:
      tflops: Peak rate of one pass of bfloat16 products, TFLOP/s.
      memory_gb: Memory, GB.
      memory_gbps: Bandwidth of this memory, GB/s.
      link_gbps: Bandwidth into a device over all its links to the others of its slice or node, GB/s.
      network_gbps: Bandwidth into a device from other nodes, GB/s; 0 for TPUs, whose slices have no nodes.
      passes: Precision -> passes of bfloat16 products in a float32 product.
      gigahertz: The clock: the peak rate over the products of the matrix units in a cycle; 0 without an estimate.
    """

    tflops: float
    memory_gb: float
    memory_gbps: float
    link_gbps: float
    network_gbps: float
    passes: dict[str, float]
    gigahertz: float


TPU_PASSES = {'default': 1, 'high': 3, 'highest': 6}
CHIPS = {
    'v5e': Chip(197, 16, 819, 200, 0, TPU_PASSES, 1.5),
    'v5p': Chip(459, 95, 2765, 600, 0, TPU_PASSES, 1.75),
    'v6e': Chip(918, 32, 1640, 400, 0, TPU_PASSES, 1.75),
    'h100': Chip(989, 80, 3350, 450, 50, {'default': 2, 'high': 2, 'highest': 989 / 67}, 0),  # TF32 by default
}
PRECISIONS = 'bfloat16', 'TF32', 'float32'
GPUS = {  # pattern of jax's name -> peak rates of dense products at these precisions, TFLOP/s, 0 where there are none
    r'NVIDIA (H100 80GB HBM3|H200)\b': (989, 495, 67),
    r'NVIDIA H100 PCIe': (756, 378, 51),
    r'NVIDIA A100\b': (312, 156, 19.5),
    r'NVIDIA A10\b': (125, 62.5, 31.2),
    r'NVIDIA L4\b': (121, 60, 30.3),
    r'NVIDIA L40S\b': (362, 183, 91.6),
    r'NVIDIA GeForce RTX 3090$': (71, 35.6, 35.6),
    r'NVIDIA GeForce RTX 4090$': (165, 82.6, 82.6),
    r'Tesla T4\b': (0, 0, 8.1),
    r'Tesla V100\b': (0, 0, 15.7),
}
TPUS = {r'TPU v5( lite|e)$': 'v5e', r'TPU v5p?$': 'v5p', r'TPU v6( lite|e)$': 'v6e'}  # jax's name -> chip
THREE_PASSES = '3 passes'  # a float32 product as three of bfloat16
TARGETS = (
    *('v5e:1x1', 'v5e:2x2', 'v5e:4x4', 'v5e:16x16', 'v5p:2x2x1', 'v6e:2x2'),
    *('h100:1', 'h100:8', 'h100:2x8'),
)


def chip_of(target: str) -> Chip:
    """Returns the chip of a target, such as 'v5e:2x2' or 'h100:8'."""
    return CHIPS[target.partition(':')[0]]


def peak_tflops(kind: str) -> dict[str, float]:
    """Returns precision -> the peak rate of products by the data sheet of a device, TFLOP/s.

    Args:
      kind: The name that jax has for the device.

    Returns:
      The rates; {} for a device that has no entry.
    """
    for pattern, rates in GPUS.items():
        if re.match(pattern, kind):
            return {precision: rate for precision, rate in zip(PRECISIONS, rates, strict=True) if rate}
    for pattern, name in TPUS.items():
        if re.match(pattern, kind):
            rate, passes = CHIPS[name].tflops, CHIPS[name].passes
            return {'bfloat16': rate, THREE_PASSES: rate / passes['high'], 'float32': rate / passes['highest']}
    return {}


def link_gbps(target: str) -> float:
    """Returns the bandwidth into a device of a target, in GB/s: over the network where it has several nodes."""
    chip = chip_of(target)
    return chip.network_gbps if target == 'h100:2x8' else chip.link_gbps


def devices(target: str) -> list[Any]:
    """Returns the devices of one of `TARGETS`, which compile but do not run.

    Raises:
      UserError: If its compiler is not installed.
    """
    kind, _, shape = target.partition(':')
    jax.config.update('jax_platforms', 'cpu')  # else the plugins look for devices
    # No query of a cloud's metadata, and several processes may compile at once.
    os.environ |= {'TPU_SKIP_MDS_QUERY': '1', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1'}
    try:
        if kind != 'h100':
            return topologies.get_topology_desc(target, platform='tpu').devices
        gpus = f'1x{shape}' if 'x' in shape else f'1x1x{shape}'  # partitions x processes x devices
        return topologies.get_topology_desc(kind, platform='cuda', topology=gpus, target_config=H100).devices
    except (ImportError, RuntimeError) as error:
        raise UserError(f"the compiler of '{target}' cannot be loaded: {error}; install it by `{INSTALL}`") from None
