#!/bin/sh
# Written by optimize, study h200-7b-eager.
# Measured: 2,540 tok/s [2,312, 2,791] (1 launch, a fresh confirmation); concurrency 16, 128 prompt tokens, no shared prefix, 256 output tokens.
# Changed against the original command line:
# disable_cuda_graph = None
# disable_decode_cuda_graph = None
# max_running_requests = 16
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
. "$here/env.sh"
exec \
  python3 \
  -m \
  sglang.launch_server \
  --model-path \
  /models/dense-7b-mtp \
  --load-format \
  dummy \
  --host \
  127.0.0.1 \
  --port \
  30000 \
  --attention-backend \
  triton \
  --sampling-backend \
  pytorch \
  --grammar-backend \
  none \
  --enable-metrics \
  --disable-piecewise-cuda-graph \
  --max-running-requests \
  16
