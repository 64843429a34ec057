"""torch.distributed without its type stubs, which lack half of what Python groups need."""

from typing import Any

import torch._C._distributed_c10d
import torch.distributed

dist: Any = torch.distributed
c10d: Any = torch._C._distributed_c10d
