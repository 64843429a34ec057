"""torch.distributed without its type stubs, which lack half of what Python groups need."""

from typing import Any

import torch._C._distributed_c10d
import torch.distributed

dist: Any = torch.distributed
c10d: Any = torch._C._distributed_c10d


def either(owner: Any, name: str, older_name: str) -> Any:
    """Torch renamed some collectives in 2.13; the one that it has."""
    return getattr(owner, name, None) or getattr(owner, older_name)
