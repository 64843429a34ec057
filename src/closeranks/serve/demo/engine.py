"""A real engine in a process of its own: the server of llama.cpp, as the package ``xllamacpp`` brings it.

``python -m closeranks.serve.demo.engine MODEL PORT [--slots N]`` prints its address once it answers.
"""

from __future__ import annotations

import argparse
import signal
import sys


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("port", type=int)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context", type=int, default=1024, help="tokens of one slot")
    parser.add_argument("--slot-files", default="", help="folder in which slots may be saved")
    options = parser.parse_args()

    import xllamacpp  # type: ignore[import-untyped]

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = options.context * options.slots
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    # One token at a time, in the prompt too: then the arithmetic of a replayed prompt is that of the first run.
    params.n_ubatch = 1
    params.n_batch = 64
    # Sums of flash attention depend on what is generated beside them: two near ties of 24 streams fell otherwise.
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.kv_unified = False  # else the order of what other slots left in the cache changes sums
    params.endpoint_slots = True
    if options.slot_files:
        params.slot_save_path = f"{options.slot_files}/"  # it is put before the file's name as it is
    params.verbosity = -1
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
