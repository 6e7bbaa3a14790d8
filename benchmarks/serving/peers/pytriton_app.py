"""Triton Inference Server with a Python model (nvidia-pytriton) and a look-up of its own.

Settings: ``size``, the maximum number of requests per batch; ``wait``, the maximum wait for a full batch in seconds.
"""

from __future__ import annotations

import os
import sysconfig

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from benchmarks.serving.peers.forms import INPUT, MODEL, OUTPUT
from benchmarks.serving.peers.matrices import Matrices
from benchmarks.serving.peers.protocol import HOST, Arguments, answers


def main() -> None:
    """Run the server."""
    # Triton embeds Python: it must load the library of this interpreter, not another one of the system.
    os.environ["LD_LIBRARY_PATH"] = sysconfig.get_config_var("LIBDIR")
    arguments = Arguments.from_command_line()
    scorer = Matrices(arguments.bundle, arguments.matrices)

    @batch
    def infer(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        data = answers(scorer, inputs[INPUT][:, 0].tolist())
        return {OUTPUT: np.array(data, dtype=object)[:, None]}

    size, wait = arguments.settings["size"], int(arguments.settings["wait"] * 1e6)
    batcher = DynamicBatcher(max_queue_delay_microseconds=wait)
    options = TritonConfig(http_address=HOST, http_port=arguments.port, allow_grpc=False, allow_metrics=False)
    with Triton(config=options) as triton:
        triton.bind(
            model_name=MODEL,
            infer_func=infer,
            inputs=[Tensor(name=INPUT, dtype=bytes, shape=(1,))],
            outputs=[Tensor(name=OUTPUT, dtype=bytes, shape=(1,))],
            config=ModelConfig(max_batch_size=size, batcher=batcher),
            strict=False,
        )
        triton.serve()


if __name__ == "__main__":
    main()
