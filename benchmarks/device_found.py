"""Prints the accelerators of this machine, and the versions of what uses them, as JSON.

`benchmarks.device` runs it in a process of its own, because a TPU belongs to a single process at a time.
"""

import importlib.util
import json
import os
import shutil
import subprocess
from typing import Any

QUERY = 'nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader'


def use_first_gpu() -> None:
    """Restricts this process to one GPU, whose memory jax and PyTorch share; must come before any use of devices."""
    visible = os.environ.get('CUDA_VISIBLE_DEVICES', '0')
    os.environ.update(CUDA_VISIBLE_DEVICES=visible.partition(',')[0], XLA_PYTHON_CLIENT_PREALLOCATE='false')


def driver() -> str:
    """Returns the version of NVIDIA's driver, '' without one."""
    if not shutil.which(QUERY[0]):
        return ''
    return subprocess.run(QUERY, capture_output=True, text=True).stdout.partition('\n')[0]


def torch_device() -> tuple[str, str]:
    """Returns the version of PyTorch and the device that it computes on; '' twice if it is not installed."""
    if not importlib.util.find_spec('torch'):
        return '', ''
    import torch

    return torch.__version__, 'cuda' if torch.cuda.is_available() else 'cpu'


def found() -> dict[str, Any]:
    """Returns the platform, kind, number, compute capability and memory of the devices, and the versions."""
    os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
    import jax
    import jaxlib

    first, *others = jax.local_devices()
    version, device = torch_device()
    return {
        'platform': first.platform,
        'kind': first.device_kind,
        'count': 1 + len(others),
        'capability': getattr(first, 'compute_capability', ''),
        'memory GB': (first.memory_stats() or {}).get('bytes_limit', 0) / 1e9,
        'runtime': ' '.join(first.client.platform_version.split()),
        'driver': driver(),
        'jax': jax.__version__,
        'jaxlib': jaxlib.__version__,
        'torch': version,
        'torch device': device,
    }


if __name__ == '__main__':
    print(json.dumps(found()))
